package demo

import (
	"fmt"
	"io"
	"strconv"
	"time"
)

// writeTable writes both results side by side.
func writeTable(w io.Writer, bare, with *result) {
	row := func(name, left, right string) { fmt.Fprintf(w, "  %-34s %12s %12s\n", name, left, right) }
	number := func(name string, of func(*result) int) { row(name, strconv.Itoa(of(bare)), strconv.Itoa(of(with))) }
	row("", "bare", "with dibs")
	number("orders (distinct keys)", func(*result) int { return orders })
	number("requests sent", func(r *result) int { return r.requests })
	number("charges made", func(r *result) int { return r.charges })
	number("orders charged more than once", func(r *result) int { return r.double })
	number("orders lost", func(r *result) int { return r.lost })
	row("money taken, of "+money(with.ordered), money(bare.charged), money(with.charged))
	number("answers replayed", func(r *result) int { return r.replays })
	number("conflicts (409), retried", func(r *result) int { return r.conflicts })
	number("cut off by the kill, then settled", func(r *result) int { return r.settled })
	number("timeouts and broken connections", func(r *result) int { return r.errors })
	number("clients without an answer", func(r *result) int { return r.unanswered })
	row("seconds", seconds(bare.took), seconds(with.took))
	fmt.Fprintln(w)
}

// money prints cents.
func money(cents int) string { return fmt.Sprintf("$%d.%02d", cents/100, cents%100) }

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) }

// serveOn tells what there is to try while the surviving proxy is up.
func serveOn(w io.Writer, d *demo, r *result, name string) {
	fmt.Fprintf(w, `The surviving proxy serves on, until Ctrl-C. Send this twice, and look:

  curl -i %[1]s/charges -H 'Idempotency-Key: "mine"' -d '{"order":"mine","amount":1999}'
  tail -n 3 %[2]s
  %[3]s show%[4]s --namespace %[5]s --glob '*:mine'

Then change the amount and send it again.
`, r.survivor.url, r.payments.path, name, d.shown, d.namespace)
}
