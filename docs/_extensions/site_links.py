"""Check a built site: every link inside of it has a target, and nothing comes from the network.

``python docs/_extensions/site_links.py build/docs`` prints what is wrong and returns 1, or 0.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}
"""Elements whose files a browser loads with the page, and the attributes that name them."""


SCRIPTED = ("laboratory.html",)
"""Pages whose own script reads what follows the sign # in their address."""


class Page(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loaded, self.anchors = [], [], {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        """Note the anchor, the link and the file of an element."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values and values.get("rel") != "canonical":
            self.loaded.append(values[LOADED[tag]])


def problems(site):
    """Yield one sentence for each dead link, missing anchor, and file from the network.

    Parameters
    ----------
    site : Path
        Folder of the built site.
    """
    site = site.resolve()
    files = [path for path in site.rglob("*.html") if path.relative_to(site).parts[0] != "_static"]
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in files}
    for path, page in pages.items():
        where = path.relative_to(site)
        for address in page.loaded:
            if urlsplit(address).scheme in ("http", "https") or address.startswith("//"):
                yield f"{where} loads {address} from the network"
        for address in dict.fromkeys(page.links + page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                yield f"{where} links to {address}, which is not there"
            elif target.name in SCRIPTED or target not in pages:
                continue
            elif unquote(parts.fragment) not in pages[target].anchors:
                yield f"{where} links to {address}, which has no such anchor"
    for style in site.rglob("*.css"):
        if "url(http" in style.read_text(encoding="utf-8").replace("'", "").replace('"', ""):
            yield f"{style.relative_to(site)} loads a file from the network"


def main(arguments):
    """Check the site in the given folder and return the exit code."""
    found = sorted(set(problems(Path(arguments[0]))))
    print("\n".join(found) or "All links of the site have a target.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
