"""The leader, rank 0: waits for the followers, runs Snakemake's job once, and sends the job's end to all."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from snakemake_executor_plugin_azureml.node.child_process import POLL_S, Child, Stop, in_shell, log
from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.hub import Hub
from snakemake_executor_plugin_azureml.node.job_environment import (
    CONTROL,
    FOLDER,
    LAUNCH,
    NodeSettings,
    job_environment,
    launch_prefix,
    single_process_world,
)
from snakemake_executor_plugin_azureml.node.place import Place
from snakemake_executor_plugin_azureml.node.secret import folder_of, make_secret, remove_secrets

# The commands of a launch must end before the job that waits for them is killed.
_SHARE_OF_GRACE = 0.4


def lead(place: Place, job: str, settings: NodeSettings, stop: Stop) -> int:
    """Run the job, Snakemake's own shell command, and return its exit code.

    Raises:
        NodeError: a process did not join, or does not belong to this job.
    """
    mounts, grace_s = settings.mounts, settings.grace_s
    if place.size == 1:  # without sockets: a launch starts its command itself
        return _run(job, job_environment(single_process_world(), 0, mounts), None, grace_s, stop)
    folder = folder_of(place, mounts)
    secret = make_secret(folder)
    try:
        hub = Hub(place, secret, replace(settings, grace_s=grace_s * _SHARE_OF_GRACE))
    except NodeError:
        remove_secrets(folder)
        raise
    code, reason = 1, "rank 0 ended with an error"
    try:
        try:
            _gather(hub, settings.wait_s, stop)
        finally:
            hub.close_network_listener()
            remove_secrets(folder)
        if stop.number:
            code = stop.code
        else:
            world = hub.world()
            log(f"all {place.size} processes joined: {', '.join(map(str, hub.members.values()))}")
            for member in hub.followers:
                hub.send_to(member, {"type": "begin", "world": world, "mounts": dict(mounts)})
            env = {**job_environment(world, 0, mounts), CONTROL: hub.control}
            code = _run(job, env, hub, grace_s, stop)
        reason = hub.failure[0] if hub.failure else ""
    except NodeError as error:
        reason = str(error)
        raise
    finally:
        hub.close(code, reason)
    return code


def _gather(hub: Hub, wait_s: float, stop: Stop) -> None:
    started, is_reminded = time.monotonic(), False
    while hub.is_incomplete() and not stop.number:
        hub.step(POLL_S)
        if hub.failure:
            raise NodeError(hub.failure[0])
        waited_s = time.monotonic() - started
        if hub.is_incomplete():
            hub.check_membership(waited_s)
        if waited_s > wait_s / 2 and not is_reminded:
            is_reminded = True
            log(f"after {waited_s:.0f} s of {wait_s:g}, {hub.describe_missing()} did not join yet")


def _run(job: str, env: Mapping[str, str], hub: Hub | None, grace_s: float, stop: Stop) -> int:
    env = {**env, LAUNCH: launch_prefix(), FOLDER: str(Path.cwd())}
    child = Child(in_shell(job), env=env, grace_s=grace_s)
    failure: tuple[str, int] | None = None
    while (code := child.poll()) is None:
        if hub is None:
            time.sleep(POLL_S)
        else:
            hub.step(POLL_S)
            if hub.failure and failure is None:
                failure = hub.failure
                log(f"{failure[0]}; ending the job")
                child.end()
        if stop.number:
            child.end()
    if stop.number:
        return stop.code
    return failure[1] if failure else code
