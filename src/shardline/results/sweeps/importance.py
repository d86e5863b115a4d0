"""Importance of a sweep's settings, by fANOVA of Optuna."""

from collections.abc import Sequence
from importlib.util import find_spec

from shardline.config.sweeps import SweepPlan
from shardline.records.sweeps import Trial
from shardline.results.sweeps.samplers import distribution

_FEWEST = 4  # trials with a value


def importance_of(plan: SweepPlan, trials: Sequence[Trial]) -> dict[str, float]:
    """Return the share of the values' variance that each setting explains, the largest first.

    Settings with a condition are left out, since fANOVA needs a value of each setting in each trial.

    Returns:
        Shares that sum to 1; empty for few trials, for equal values, or without Optuna and scikit-learn.
    """
    known = [one for one in trials if one.value is not None]
    if len(known) < _FEWEST or not (find_spec("optuna") and find_spec("sklearn")):
        return {}
    if len({one.values[0] if one.values else one.value for one in known}) == 1:
        return {}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    keys = [key for key in plan.space.keys if not plan.space.dimensions[key].when]
    varied = [
        key for key in keys if len({one.row[plan.space.keys.index(key)] for one in known}) > 1
    ]
    if not varied:
        return {}
    study = optuna.create_study()
    distributions = {key: distribution(optuna, plan.space, key) for key in varied}
    for one in known:
        params = {key: one.row[plan.space.keys.index(key)] for key in varied}
        value = one.values[0] if one.values else one.value  # with rungs, after the same epochs
        study.add_trial(
            optuna.trial.create_trial(value=value, params=params, distributions=distributions)
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator, params=varied)
    return {key: float(value) for key, value in found.items()}
