"""Identity: what a result was made from, as one canonical document and its digest."""

from shardline.identity.code import CodeIndex
from shardline.identity.content import FileDigests
from shardline.identity.environment import Lock, load_lock
from shardline.identity.user_code import UserCode

__all__ = ["CodeIndex", "FileDigests", "Lock", "UserCode", "load_lock"]
