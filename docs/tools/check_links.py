"""Check that every link of a built site leads somewhere: python docs/tools/check_links.py build/site

Links to other sites are not followed, so that this needs no internet.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The places that a page has, and the links that leave from it."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links = {""}, []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        self.links += [given[name] for name in ("href", "src") if given.get(name)]


def main(site):
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    broken, count = [], 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":  # that one has links for a server
                continue
            count += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                broken.append(f"{path.relative_to(site.resolve())}: {link} is no file")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                broken.append(f"{path.relative_to(site.resolve())}: {link} has no such place")
    print("\n".join(sorted(set(broken))) or f"{count} links of {len(pages)} pages lead somewhere")
    return bool(broken) or not pages


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
