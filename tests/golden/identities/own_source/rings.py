import scipy

from shardline.sources import Source


class Rings(Source):
    version = scipy.__version__
