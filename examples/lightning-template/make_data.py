"""Let the data module of the project prepare its data: python make_data.py FOLDER."""

import runpy
import sys
from pathlib import Path

module = runpy.run_path(str(Path(__file__).with_name("src") / "data" / "mnist_datamodule.py"))
module["MNISTDataModule"](data_dir=sys.argv[1]).prepare_data()
