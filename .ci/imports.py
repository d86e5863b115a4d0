#!/usr/bin/env python3
"""Import every module, and the packages that the extra `all` installs: `python .ci/imports.py [--no-torch]`.

`--no-torch` leaves out the modules that need torch, for a Python without a build of it.
"""

import importlib
import pkgutil
import sys
import traceback

PACKAGES = ("shardline", "shardline_io", "snakemake_logger_plugin_shardline")
WITH_TORCH = ("torch", "pytorch_lightning", "lightning", "lightning_fabric", "torchmetrics")


def modules() -> list[str]:
    """Return the dotted names of all modules."""
    found = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        walked = pkgutil.walk_packages(package.__path__, f"{name}.", onerror=lambda _: None)
        found += [name, *(one.name for one in walked if not one.name.endswith("__main__"))]
    return found


def main() -> int:
    """Import all, and print what does not import."""
    from shardline.core.extras import EXTRA_OF

    failed = needing = 0
    names = [*modules(), *(one for one, extra in EXTRA_OF.items() if extra != "azure-blob")]
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if "--no-torch" in sys.argv and (error.name or "").partition(".")[0] in WITH_TORCH:
                needing += 1
                continue
            failed += 1
            traceback.print_exc()
        except Exception:
            failed += 1
            traceback.print_exc()
    print(f"{len(names)} modules: {failed} do not import, {needing} need torch")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
