"""Identity of a result: a canonical document of all that the result was made from, and its digest."""

from shardline.identity.code_index import CodeIndex
from shardline.identity.package_lock import Lock, load_lock
from shardline.identity.user_code import UserCode

__all__ = ["CodeIndex", "Lock", "UserCode", "load_lock"]
