"""One shared relative space for any sentence-transformers encoders."""

from relrep_hf.embedding import EmbeddingCache
from relrep_hf.fitting import ParamSettings
from relrep_hf.heads import RelativeHead
from relrep_hf.identity import check_same_space, space_id
from relrep_hf.report import retention_report
from relrep_hf.space import RelativeSpace
from relrep_hf.stitching import stitch

__version__ = "0.1.0"
__all__ = [
    "EmbeddingCache",
    "ParamSettings",
    "RelativeHead",
    "RelativeSpace",
    "check_same_space",
    "retention_report",
    "space_id",
    "stitch",
]
