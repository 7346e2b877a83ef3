"""Links of the documentation to files of the repository work in the site, and the site loads nothing from elsewhere."""

from types import SimpleNamespace

import pytest
from tools import site_hooks


def page(path):
    return SimpleNamespace(file=SimpleNamespace(src_uri=path))


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("faq.md", "[a](../examples/own_backbone.py)", "[a](files/examples/own_backbone.py)"),
        ("results/mnist.md", "[a](../../results/x.json)", "[a](../files/results/x.json)"),
        ("architecture.md", "[a](../SECURITY.md#files)", "[a](project/security.md#files)"),
        ("notebooks.md", "[a](../examples/quick_start.ipynb)", "[a](notebooks/quick_start.md)"),
        ("results/mnist.md", "[a](../training.md) [b](paper-table.md)", "[a](../training.md) [b](paper-table.md)"),
    ],
)
def test_links_to_files_outside_docs_lead_to_their_copies(path, before, after):
    assert site_hooks.on_page_markdown(before, page=page(path), config=None, files=None) == after


def test_a_page_that_loads_something_is_refused():
    local = '<script src="assets/x.js"></script> <a href="https://semver.org">SemVer</a>'
    assert site_hooks.on_post_page(local, page=page("index.md"), config=None) == local
    for tag in ('<script src="https://cdn.org/x.js">', "<img alt=x src=//cdn.org/x.png>"):
        with pytest.raises(ValueError, match=r"index.md loads (https:)?//cdn.org/x.*: put a copy into docs/assets"):
            site_hooks.on_post_page(tag, page=page("index.md"), config=None)
