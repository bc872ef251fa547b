"""What MkDocs needs to show the repository as a site: pages from outside of docs/, and links that lead to them.

Links in our Markdown are paths in the repository, so that they work in an editor and on a code host, too.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[2]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")


def on_files(files, config):
    """Add the pages that lie elsewhere."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    rows = [
        "# Examples",
        "",
        "Each is a short program that runs as it stands.",
        "",
        "| example | what it shows |",
        "|---|---|",
    ]
    for path in EXAMPLES:
        code = path.read_text()
        rows.append(f"| [{path.stem}]({path.stem}.md) | {_first_line(code)} |")
        page = f"# {path.name}\n\n```python\n{code}```\n"
        not_in_nav = {"inclusion": InclusionLevel.NOT_IN_NAV}
        files.append(File.generated(config, f"examples/{path.stem}.md", content=page, **not_in_nav))
    files.append(File.generated(config, "examples/index.md", content="\n".join(rows) + "\n"))
    return files


def on_page_markdown(markdown, page, config, files):
    """Let links in the repository lead to pages of the site."""
    here = _in_repository(page.file.src_uri)

    def on_site(link):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[2]))
        return link[1] + posixpath.relpath(_on_site(target), posixpath.dirname(page.file.src_uri) or ".")

    return markdown if here is None else LINK.sub(on_site, markdown)


def _first_line(code):
    return code.removeprefix('"""').partition("\n")[0].removesuffix('"""')


def _in_repository(page):
    """Return where a page's text lies; `None` if it was made here."""
    if page.startswith("examples/"):
        return None
    return next((source for source, name in PAGES.items() if name == page), f"docs/{page}")


def _on_site(path):
    if path == "examples":
        return "examples/index.md"
    if path.startswith("examples/"):
        return path.removesuffix(".py") + ".md"
    return PAGES.get(path, path.removeprefix("docs/"))
