package draw

import (
	"fmt"
	"html"
	"strings"
)

// width is that of every picture: what GitHub has for a page on a wide screen.
const width = 800

// A picture is an SVG that grows. It has its own paper, because the reader's system and the page
// around the picture may differ in whether they are dark.
type picture struct {
	title, shows string
	body         strings.Builder
}

// style has the colours of the light and of the dark. An <img> has no scripts, but media queries.
const style = `:root{--ink:#1f2328;--mute:#59636e;--line:#d1d9e0;--paper:#fff;--a:#54aeff;--b:#e16f24;--c:#4ac26b;--d:#afb8c1}
@media(prefers-color-scheme:dark){:root{--ink:#f0f6fc;--mute:#9198a1;--line:#3d444d;--paper:#0d1117;--a:#1f6feb;--b:#bd561d;--c:#238636;--d:#656c76}}
text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:var(--ink);stroke:var(--paper);stroke-width:4px;paint-order:stroke}
.m{fill:var(--mute)}.s{font-weight:600}.e{text-anchor:end}.i{text-anchor:middle}
.l{stroke:var(--line)}.k{stroke:var(--ink);stroke-width:1.5;fill:none}
.n{stroke:none}.z{stroke-width:3}.h{fill:var(--ink)}.o{fill:none;stroke:var(--line)}
.a{fill:var(--a)}.b{fill:var(--b)}.c{fill:var(--c)}.d{fill:var(--d)}
`

// escape makes text of XML.
var escape = html.EscapeString

// add adds elements.
func (p *picture) add(format string, args ...any) { fmt.Fprintf(&p.body, format+"\n", args...) }

// text adds a text of some classes.
func (p *picture) text(x, y float64, class, text string) {
	p.add(`<text x="%.0f" y="%.0f" class="%s">%s</text>`, x, y, class, escape(text))
}

// line adds a line of some classes.
func (p *picture) line(x1, y1, x2, y2 float64, class string) {
	p.add(`<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" class="%s"/>`, x1, y1, x2, y2, class)
}

// box adds a filled box.
func (p *picture) box(x, y, w, h float64, class string) {
	p.add(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2" class="%s"/>`, x, y, w, h, class)
}

// svg returns the document. Beside the common style it can have one of its own.
func (p *picture) svg(height float64, styles ...string) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%[1]d" height="%.0[2]f" role="img" aria-labelledby="t d">
<title id="t">%s</title>
<desc id="d">%s</desc>
<style>%s</style>
<rect x=".5" y=".5" width="%d" height="%.0f" rx="6" class="l" fill="var(--paper)"/>
%s</svg>
`, width, height, escape(marks.ReplaceAllString(p.title, "")), escape(p.shows), style+strings.Join(styles, ""), width-1, height-1, p.body.String())
}
