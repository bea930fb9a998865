"""An EPUB of two chapters, variants with changed files, and a cover."""

import struct
import zipfile
import zlib

CONTAINER = """<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">
<rootfiles><rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
PACKAGE = """<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>A  Book</dc:title><dc:creator>Ann</dc:creator>
</metadata><manifest><item id="nav" href="nav.xhtml" properties="nav"/><item id="ncx" href="toc.ncx"/>
<item id="c" href="text/copy.xhtml"/><item id="a" href="text/a%20b.xhtml"/><item id="b" href="text/b.xhtml"/>
<item id="n" href="text/notes.xhtml"/></manifest>
<spine toc="ncx"><itemref idref="nav"/><itemref idref="c"/><itemref idref="a"/><itemref idref="b"/>
<itemref idref="n" linear="no"/></spine></package>"""
NAV = """<html xmlns:epub="http://www.idpf.org/2007/ops"><body><nav epub:type="landmarks"><a href="x">No</a></nav>
<nav epub:type="toc"><ol><li><a href="text/a%20b.xhtml">The <i>First</i></a>
<ol><li><a href="text/a%20b.xhtml#s2">Section</a></li></ol></li>
<li><span>Part</span><ol><li><a href="text/b.xhtml#two">Second</a></li><li><a href="text/b.xhtml#three">No chapter</a>
</li></ol></li></ol></nav></body></html>"""
NCX = """<ncx xmlns="http://www.daisy.org/z3986/2005/ncx/"><navMap>
<navPoint><navLabel><text>The First</text></navLabel><content src="text/a%20b.xhtml"/></navPoint>
<navPoint><navLabel><text>Second</text></navLabel><content src="text/b.xhtml#two"/></navPoint></navMap></ncx>"""
DOCUMENTS = {
    "copy.xhtml": '<body epub:type="copyright-page"><p>All rights reserved.</p></body>',
    "a b.xhtml": """<head><title>No</title><style>p {}</style></head><body><section epub:type="chapter"><h1>First<br/>of
all</h1><p>One <b>bold</b>&nbsp;word&mdash;and<a epub:type="noteref" href="#n">1</a> more.<p>Not closed.
<hr/><h2 id="s2">Section</h2><p>Two<br/>lines.</p><ruby>漢<rt>kan</rt></ruby>
<aside epub:type="footnote"><p>A note.</p></aside></section></body>""",
    "b.xhtml": """<body><p>Still the first.</p><h1 id="two">Second</h1><p>Three.</p><h2 id="three">Below</h2>
<table><tr><td>a</td><td>b</td></tr></table></body>""",
    "notes.xhtml": "<body><p>Never read.</p></body>",
}


def epub(path, **changes):
    """Return an EPUB. changes: file -> text, or None to leave it out."""
    files = {"META-INF/container.xml": CONTAINER, "OEBPS/book.opf": PACKAGE, "OEBPS/nav.xhtml": NAV}
    files |= {"OEBPS/toc.ncx": NCX} | {f"OEBPS/text/{name}": text for name, text in DOCUMENTS.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (files | changes).items():
            if text is not None:
                archive.writestr(name, text)
    return path


def _part(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


COVER = b"\x89PNG\r\n\x1a\n" + b"".join(  # two grey pixels
    _part(*one)
    for one in (
        (b"IHDR", struct.pack(">IIBBBBB", 2, 1, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0\x80\x80")),
        (b"IEND", b""),
    )
)
