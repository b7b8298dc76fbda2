package demo

import (
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"time"
)

// writeTable writes both results side by side.
func writeTable(w io.Writer, bare, with *result) {
	row := func(name, left, right string) { fmt.Fprintf(w, "  %-34s %12s %12s\n", name, left, right) }
	number := func(name string, of func(*result) int) { row(name, strconv.Itoa(of(bare)), strconv.Itoa(of(with))) }
	count := func(name string, of func(*result) *atomic.Int64) {
		number(name, func(r *result) int { return int(of(r).Load()) })
	}
	row("", "bare", "with dibs")
	number("orders (distinct keys)", func(*result) int { return orders })
	count("requests sent", func(r *result) *atomic.Int64 { return &r.requests })
	number("charges made", func(r *result) int { return r.charges })
	number("orders charged more than once", func(r *result) int { return r.double })
	number("orders lost", func(r *result) int { return r.lost })
	row("money taken, of "+money(with.ordered), money(bare.charged), money(with.charged))
	count("answers replayed", func(r *result) *atomic.Int64 { return &r.replays })
	count("conflicts (409), retried", func(r *result) *atomic.Int64 { return &r.conflicts })
	count("cut off by the kill, then resolved", func(r *result) *atomic.Int64 { return &r.resolved })
	count("timeouts and broken connections", func(r *result) *atomic.Int64 { return &r.errors })
	count("clients without an answer", func(r *result) *atomic.Int64 { return &r.unanswered })
	row("seconds", seconds(bare.took), seconds(with.took))
	fmt.Fprintln(w)
}

func money(cents int) string { return fmt.Sprintf("$%d.%02d", cents/100, cents%100) }

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) }
