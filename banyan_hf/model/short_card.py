"""The model card of `model.push_to_hub`: what the model is and how to open it, which is all that the model knows."""

from __future__ import annotations

CARD = "README.md"
TEXT = """---
library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags:
- banyan
- sentence-transformers
- sentence-similarity
- feature-extraction
---

# {name}

A sentence encoder that induces its own trees ([Banyan, arXiv 2407.17771](https://arxiv.org/abs/2407.17771)).

```python
from sentence_transformers import SentenceTransformer

encoder = SentenceTransformer("{name}", trust_remote_code=True)
```

Needs transformers 5.4 and sentence-transformers 6, or newer. With `pip install banyan-hf` and `import banyan_hf`, no
`trust_remote_code`. Nothing is said here about its training text, its scores and its licence.
"""


def short_card(name: str) -> str:
    """Markdown with a YAML head.

    Args:
        name: of the repository.

    Example:
        >>> short_card("me/x").splitlines()[10]
        '# me/x'
    """
    return TEXT.format(name=name)
