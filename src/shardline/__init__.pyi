from shardline import errors as errors
from shardline import ledger as ledger
from shardline import losses as losses
from shardline import models as models
from shardline import projects as projects
from shardline import sources as sources
from shardline import transforms as transforms
from shardline.projects import Project as open

__version__: str
__all__ = [
    "__version__", "errors", "ledger", "losses", "models", "open", "projects", "sources", "transforms",
]  # fmt: skip
