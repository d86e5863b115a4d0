from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


report: "report/captions/workflow.rst"


include: "rules/common.smk"


container: CONTAINER


include: "rules/data.smk"
include: "rules/train.smk"
include: "rules/sweep.smk"
include: "rules/predict.smk"
include: "rules/report.smk"
include: "rules/envs.smk"


localrules:
    all,
    resolve_run,
    register_data,
    render_report,
    propose,
    seal_study,


rule all:
    default_target: True
    input:
        models=ancient(models_of_all),
        evaluations=ancient(EVALUATIONS),
        predictions=ancient(PREDICTIONS),
        studies=ancient(SWEEPS.summaries),
        report=ancient(JOBS.report),
        assets=ancient(ASSETS),


onstart:
    snakemake_speedups.end()
    forget_cold()
    with workflow_errors():
        check_jobs(PROJECT, workflow, logger)
    if plan := JOBS.plan_of_machine(workflow.dag.needrun_jobs()):
        logger.info(plan)


onerror:
    settle(PROJECT, STORAGE, logger, DONE_BEFORE)
    tell_cold(logger)
    from shardline.pipeline.late_report import report_on_failure

    report_on_failure(PROJECT, workflow, logger)


onsuccess:
    settle(PROJECT, STORAGE, logger, DONE_BEFORE)
    tell_cold(logger)
    page = PROJECT.layout.declared.latest_report / PROJECT.report.name
    if page.exists():
        logger.info(f"Report: {page}")
