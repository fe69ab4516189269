"""Parser of HTML for tests of what notebooks show."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collect text, tags and attributes, and see that every tag is closed in its order."""

    def __init__(self, page):
        super().__init__()
        self.text, self.tags, self.attributes, self.open = [], set(), [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
