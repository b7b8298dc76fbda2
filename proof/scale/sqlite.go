package main

import "time"

// SQLite is what sqlitestore costs. A call is a transaction that writes, which appends
// whole pages to the log. There is no server, and nothing is sent.
type SQLite struct{}

const (
	sqlitePage = 4096 + 24 // a page in the log, with its header
	sqliteRoom = 3760      // what is on a page, when keys come in their order
)

// Name implements Store.
func (SQLite) Name() string { return "SQLite" }

// pages is a transaction that writes so many pages of the file.
func (SQLite) pages(n float64) Cost { return Cost{Calls: 1, Log: n * sqlitePage} }

// leaves is how many pages so many rows are on, which come one after the other; and
// changed how many pages are written when they come or go: where there are several, those
// above and beside them are, too.
func leaves(n, row int) float64 { return float64(runs(n*row, sqliteRoom)) }

func changed(n, row int) float64 {
	if at := leaves(n, row); at > 1 {
		return at + 2
	}
	return 1
}

// Claim implements Store: the row of the file, and those of the leases.
func (l SQLite) Claim(s Shape, n int) Cost { return l.pages(1 + changed(n, sqliteLease(s))) }

// Renew implements Store: many are seldom on pages of their own.
func (l SQLite) Renew(s Shape, n int) Cost {
	return l.pages(1 + leaves(n, sqliteLease(s)) + min(0.5, float64(n-1)/40))
}

// Release implements Store.
func (l SQLite) Release(s Shape, n int) Cost { return l.Claim(s, n) }

// Keep implements Store: beside the leases the records, at the end of their table, and
// their keys in the index. When the file grows, its first page and the one above the new
// one are written, too; and now and then one that is free, or was.
func (l SQLite) Keep(s Shape, n int) Cost {
	grows := float64(n*sqliteRecord(s)) / 4000
	return l.pages(1 + changed(n, sqliteLease(s)) + 1 + grows + 2*min(1, grows) + 0.5 + leaves(n, sqliteIndex(s)))
}

// Replay implements Store: it writes nothing.
func (SQLite) Replay(Shape, int) Cost { return Cost{} }

// Join implements Store: the place, and its token in the index.
func (l SQLite) Join(s Shape, _ int) Cost { return l.pages(1 + 2) }

// Ask implements Store.
func (l SQLite) Ask(Shape, int) Cost { return l.pages(1 + 1) }

// HandOver implements Store: the settlement makes the offer, and tells of it by a row if
// it is another process's; then it is confirmed.
func (l SQLite) HandOver(s Shape, _ int) Cost { return l.pages(1 + 3.5).Plus(l.pages(1 + 1)) }

// Job implements Store.
func (l SQLite) Job(s Shape) Cost {
	return l.Join(s, 0).Plus(l.pages(1+2), l.pages(1+3))
}

// Idle implements Store: what has ended is looked for, and nothing is written.
func (SQLite) Idle(float64, time.Duration) Cost { return Cost{} }

// Polls implements Store: the table of wakes is read, which costs nobody else anything.
func (SQLite) Polls(Shape, int, int) Cost { return Cost{} }

// Connections implements Store: one that writes and one that looks, of the file.
func (SQLite) Connections() (least, most int) { return 1, 2 }

// Limit implements Store.
func (SQLite) Limit() int { return 0 }

func sqliteLease(s Shape) int  { return 80 + s.Key + s.Owner }
func sqliteRecord(s Shape) int { return 45 + s.Key + s.Data }
func sqliteIndex(s Shape) int  { return 14 + s.Key }

// Record implements Store.
func (SQLite) Record(s Shape) float64 {
	return float64(sqliteRecord(s))*1.1 + float64(sqliteIndex(s))/0.67
}

// Lease implements Store.
func (SQLite) Lease(s Shape) float64 { return float64(sqliteLease(s)-20) * 1.1 }

// Place implements Store: with its token in the index.
func (SQLite) Place(s Shape) float64 { return float64(50+s.Key+s.Owner+24+s.Key) * 1.1 }

// Sweep implements Store: records are in the order in which they end.
func (SQLite) Sweep(Shape, int) Cost { return Cost{} }
