package conform

import (
	"fmt"
	"io"
	"strings"
)

// listHead begins the published list; %d are the numbers of cases, of all and by level.
const listHead = `# Conformance of idempotent HTTP

What ` + "`dibs conform`" + ` checks: %d cases, which send requests to an implementation of
idempotent HTTP, ours or not, and look at what comes back and at what it let
through. This page is made from the cases by ` + "`dibs conform --list`" + `.

` + "```sh" + `
dibs conform --target http://127.0.0.1:8080 --origin 127.0.0.1:3000
` + "```" + `

The target forwards to the origin, which the kit starts at the address of
` + "`--origin`" + `. A middleware is checked in a program that has a handler behind it
which passes every request on to that address; in Go, the handler can be
` + "`conform.NewOrigin()`" + ` itself, with ` + "`--control`" + ` for the address of its
` + "`Handler()`" + `. Each case has a name and keys of its own, so that a run can be
repeated, and made against a server that others use too. Nothing is sent but
HTTP/1.1, to paths that contain ` + "`/conform/`" + `.

| level | | cases |
|---|---|---|
| must | a requirement of an RFC, or that without which nothing is idempotent: a request ran twice, or somebody was given a wrong answer | %d |
| should | a recommendation of the draft or of an RFC | %d |
| practice | what providers of public interfaces document, and clients count on | %d |
| extension | what dibs promises beyond that | %d |

What a target sets out to do is a profile: ` + "`draft`" + ` is all that must or should
hold, ` + "`dibs`" + ` is everything, and ` + "`stripe`" + ` is what Stripe documents of its API.
A case that is left out, by the profile, by ` + "`--skip`" + `, or because the target was not
said to do it (` + "`--require-key`, `--strict-key`, `--keeps-5xx`, `--restart`" + `), is reported as
skipped, and never as passed. The run ends with 0 if no case failed that must
pass, with 1 if one did, and with 69 if nothing could be checked.

Unless a case says otherwise it sends a POST with a JSON body and a key that
nobody else has, as a quoted string, and the origin answers 201 with the number
of the run. *Refused* means by the target itself, without an answer of the
origin: with 400 for a key that is malformed or missing, with 422 for another
request under the same key (400 in the profile stripe), and with 409 for a
duplicate while the first one runs (` + "`--conflict-status`" + `).

*Draft-07* is draft-ietf-httpapi-idempotency-key-header-07. It has expired, and
most of what it says of servers it recommends; what we count as *must* beyond
the RFCs is our judgement.
`

// WriteList writes the published list, in Markdown.
func WriteList(w io.Writer) error {
	var b strings.Builder
	count := make(map[Level]int)
	all := Cases()
	for _, c := range all {
		count[c.Level]++
	}
	fmt.Fprintf(&b, listHead, len(all), count[Must], count[Should], count[Practice], count[Extension])
	for _, room := range Rooms() {
		fmt.Fprintf(&b, "\n## %s\n", room.Title)
		for i := range room.Cases {
			room.Cases[i].describe(&b)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// describe writes the case's section.
func (c *Case) describe(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s\n\n**%s.** *%s*, ", c.ID, c.Title, c.Level)
	for i, s := range c.Sources {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(b, "[%s](%s)", s.Text, s.URL)
	}
	b.WriteString(".\n")
	if c.needs != always {
		fmt.Fprintf(b, "Needs %s.\n", c.needs)
	}
	fmt.Fprintf(b, "\n- Sent: %s\n- Expected: %s\n- The origin ran: %s.\n", c.Sent, c.Expected, c.Ran)
}
