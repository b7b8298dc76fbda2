package check_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
)

var leaseCases = []historyCase{
	{"nothing is changed", "", func(h *builder) {}},
	{"granted while another one holds", "lease", func(h *builder) {
		h.at("B claims").Call, h.at("B claims").Return = 350*ms, 360*ms
	}},
	{"granted while a settlement is on its way", "", func(h *builder) {
		h.at("B claims").Call, h.at("B claims").Return = 395*ms, 401*ms
	}},
	{"a place is got while the grant is given up, which is pushed later", "", func(h *builder) {
		h.granted("G claims", 10, 20, "late", "G", "queue", 10)
		h.claim("T waits", 30, 40, "late", "T", "queue", "held")
		h.claim("V waits", 50, 60, "late", "V", "queue", "held")
		h.settle("G releases", 100, 110, "late", "G", "release")  // T is granted
		h.claim("T asks", 105, 130, "late", "T", "queue", "held") // and asks behind V, as it has given up
		h.settle("T undoes", 112, 118, "late", "T", "undo")
		h.pushed("V is granted", 50, 119, "late", "V", 12)
		h.pushed("T is granted", 30, 140, "late", "T", 11)
		h.settle("T undoes again", 150, 155, "late", "T", "undo")
		h.settle("V releases", 200, 210, "late", "V", "release")
	}},
	{"granted again after the lease ran out", "", func(h *builder) {
		h.drop("A releases", "A leaves", "A enters", "B enters", "B leaves", "B releases", "B asks")
		h.at("B waits").Call, h.at("B waits").Return = 1000*ms, 1010*ms
		h.at("B claims").Call, h.at("B claims").Return, h.at("B claims").Attempt = 1261*ms, 1270*ms, 2
	}},
	{"a second grant, whose claim was not answered, is renewed after a gap", "", func(h *builder) {
		h.granted("G claims", 10, 20, "again", "G", "queue", 10)
		again := h.claim("G asks", 600, 1600, "again", "G", "queue", "")
		again.Error = history.Unknown
		h.claim("T waits", 900, 910, "again", "T", "queue", "held")
		h.claim("V tries", 1100, 1110, "again", "V", "try", "held").Left = 0 // T is next
		h.settle("T gives up", 1200, 1210, "again", "T", "undo")
		h.renew("G renews", 1650, 1660, "again", "G")
		h.settle("G releases", 1700, 1710, "again", "G", "release")
	}},
	{"renewed after the lease ran out", "lease", func(h *builder) {
		h.granted("G claims", 10, 20, "late", "G", "try", 10)
		h.renew("G renews", 3000, 3010, "late", "G")
		h.settle("G releases", 3020, 3030, "late", "G", "release")
	}},
	{"renewed after the lease ran out, in a store that notices that late", "", func(h *builder) {
		h.o.Late = time.Minute
		h.granted("G claims", 10, 20, "late", "G", "try", 10)
		h.renew("G renews", 3000, 3010, "late", "G")
		h.settle("G releases", 3020, 3030, "late", "G", "release")
	}},
	{"granted before the lease ran out", "lease", func(h *builder) {
		h.drop("A releases", "A leaves", "A enters", "B enters", "B leaves", "B releases", "B asks")
		h.at("B waits").Call, h.at("B waits").Return = 1000*ms, 1010*ms
		h.at("B claims").Call, h.at("B claims").Return = 1200*ms, 1230*ms
	}},
	{"the settlement was not answered of, and another one is granted", "", func(h *builder) {
		h.at("A releases").Error = history.Unknown
		h.at("B claims").Call, h.at("B claims").Return = 700*ms, 710*ms
		h.drop("B enters", "B leaves", "B releases")
	}},
	{"a renewal that was not answered of lets the lease last", "", func(h *builder) {
		h.at("A renews").Error = history.Unknown
		h.renew("A renews again", 1200, 1210, "mutex", "A")
		h.at("A releases").Call, h.at("A releases").Return = 1300*ms, 1310*ms
		h.at("A leaves").Call, h.at("A leaves").Return = 1290*ms, 1290*ms
		h.drop("B waits", "B asks", "B claims", "B enters", "B leaves", "B releases")
	}},
	{"a renewal revives a lease", "lease", func(h *builder) {
		h.drop("B waits", "B asks", "B claims", "B enters", "B leaves", "B releases", "A releases", "A leaves", "A enters")
		h.renew("A renews late", 1300, 1310, "mutex", "A")
	}},
	{"renewed though another one was granted", "lease", func(h *builder) {
		h.renew("A renews late", 450, 460, "mutex", "A")
		h.at("A releases").Error = history.Unknown
	}},
	{"one that was granted in its absence renews, and did not hear of it", "", func(h *builder) {
		h.drop("B claims", "B enters", "B leaves")
		h.renew("B renews", 415, 425, "mutex", "B")
	}},
	{"one that was granted in its absence after it had lost the key renews", "", losesAndWaits},
	{"one that waits renews though another one holds", "lease", func(h *builder) {
		losesAndWaits(h)
		h.at("W releases").Call, h.at("W releases").Return = 2000*ms, 2010*ms
	}},
	{"one that had lost the key renews before it waits again", "lease", func(h *builder) {
		losesAndWaits(h)
		h.renew("U renews late", 1811, 1812, "mutex", "U")
		h.drop("W claims", "W releases")
	}},
	{"one that gave its place up renews", "lease", func(h *builder) {
		losesAndWaits(h)
		h.settle("U gives up", 1840, 1850, "mutex", "U", "undo")
	}},
	{"one that was granted in its absence keeps a record, and did not hear of it", "", func(h *builder) {
		losesAndWaits(h)
		k := h.settle("U keeps", 1931, 1935, "mutex", "U", "keep")
		k.Data, k.Retention = "answer", time.Hour
		h.drop("U releases")
	}},
	{"one that waits keeps a record though another one holds", "lease", func(h *builder) {
		losesAndWaits(h)
		h.at("W releases").Call, h.at("W releases").Return = 2000*ms, 2010*ms
		k := h.settle("U keeps", 1931, 1935, "mutex", "U", "keep")
		k.Data, k.Retention = "answer", time.Hour
		h.drop("U renews", "U releases")
	}},
	{"a reserved place is renewed", "lease", func(h *builder) { h.renew("X renews", 150, 160, "place", "X") }},
	{"a waiter whose place has run out renews", "lease", func(h *builder) {
		losesAndWaits(h)
		h.at("U renews").Call, h.at("U renews").Return = 9000*ms, 9010*ms
		h.drop("U releases")
	}},
	{"another one is granted while one holds that did not hear of its grant", "lease", func(h *builder) {
		losesAndWaits(h)
		h.granted("V claims", 1932, 1936, "mutex", "V", "queue", 15)
	}},
	{"another one is granted after one that did not hear of its grant", "", func(h *builder) {
		losesAndWaits(h)
		h.granted("V claims", 1960, 1970, "mutex", "V", "queue", 15)
	}},
	{"one that did not hear of its grant renews when that is over", "lease", func(h *builder) {
		losesAndWaits(h)
		h.at("U releases").Call, h.at("U releases").Return = 4040*ms, 4050*ms
		h.renew("U renews late", 4020, 4030, "mutex", "U")
	}},
	{"one that waits cannot keep a record, and is granted in its absence", "", func(h *builder) {
		losesAndWaits(h)
		k := h.settle("U keeps", 1840, 1850, "mutex", "U", "keep")
		k.Data, k.Retention, k.Error = "answer", time.Hour, history.Lost
	}},
	{"a waiter gets an old pushed grant, and is granted in its absence", "", func(h *builder) {
		losesAndWaits(h)
		h.at("U waits").Fence = 13
		h.pushed("U is granted", 700, 1835, "mutex", "U", 12)
	}},
	{"lost though it lasts", "lease", func(h *builder) {
		h.at("A renews").Error = history.Lost
	}},
	{"lost after it ran out", "", func(h *builder) {
		h.renew("A is late", 1500, 1510, "mutex", "A").Error = history.Lost
	}},
	{"settled twice", "lease", func(h *builder) {
		h.settle("A releases again", 500, 510, "mutex", "A", "release")
	}},
	{"a settlement whose reply was lost is sent again", "", func(h *builder) {
		h.at("A releases").Error = history.Unknown
		h.settle("A releases again", 500, 510, "mutex", "A", "release").Error = history.Lost
	}},
	{"settled by one that never held", "lease", func(h *builder) {
		h.claim("V tries", 300, 310, "mutex", "V", "try", "held")
		h.settle("V releases", 320, 330, "mutex", "V", "release")
	}},
	{"a waiter leaves", "", func(h *builder) {
		h.claim("V waits", 300, 310, "mutex", "V", "queue", "held")
		h.settle("V gives up", 320, 330, "mutex", "V", "undo")
	}},
	{"the holder asks again", "", func(h *builder) {
		h.granted("A asks again", 300, 310, "mutex", "A", "queue", 10)
	}},
	{"the holder asks again and is granted anew", "lease", func(h *builder) {
		h.granted("A asks again", 300, 309, "mutex", "A", "try", 12)
		h.drop("B claims", "B enters", "B leaves", "B releases")
	}},
	{"the holder asks again and is held", "lease", func(h *builder) {
		h.claim("A asks again", 300, 310, "mutex", "A", "try", "held")
	}},
	{"a caller looks and finds a held key free", "lease", func(h *builder) {
		h.claim("look", 300, 310, "mutex", "00", "look", "free")
	}},
	{"a grant was pushed, and confirmed", "", func(h *builder) {
		e := h.granted("B is granted", 150, 412, "mutex", "B", "", 11)
		e.Kind = history.Pushed
	}},
	{"a grant was pushed, and renewed late", "lease", func(h *builder) {
		h.at("B claims").Kind = history.Pushed
		h.at("B claims").Call = 150 * ms
		h.drop("B enters", "B leaves", "B releases")
		h.renew("B renews", 1500, 1510, "mutex", "B")
	}},
	{"a grant was pushed though a record answers", "register", func(h *builder) {
		h.drop("D is done", "D replies", "E mismatches")
		d := h.claim("D waits", 150, 160, "once", "D", "queue", "held")
		e := h.granted("D is granted", 150, 320, "once", "D", "", 21)
		d.Fingerprint, e.Kind, e.Fingerprint = "aa", history.Pushed, "aa"
		d.MaxAge, e.MaxAge = 1<<63-1, 1<<63-1
	}},
	{"three at once with two permits", "lease", func(h *builder) {
		h.at("R claims").Call, h.at("R claims").Return = 210*ms, 220*ms
	}},
	{"one takes more permits than are left", "lease", func(h *builder) { h.at("Q claims").Weight = 2 }},
	{"two hold though they see other numbers of permits", "lease", func(h *builder) { h.at("Q claims").Permits = 3 }},
	{"the number of permits changes", "", func(h *builder) {
		h.at("R claims").Permits, h.at("R claims").Weight = 3, 3
		h.at("R claims").Call, h.at("R claims").Return = 370*ms, 380*ms
	}},
	{"the number of permits changes while a lease stands", "lease", func(h *builder) {
		h.at("R claims").Permits, h.at("R claims").Weight = 3, 3
		h.at("R claims").Call, h.at("R claims").Return = 300*ms, 310*ms
	}},
	{"a caller that looks finds room for more than there is", "lease", func(h *builder) {
		e := h.claim("look", 220, 230, "permits", "00", "look", "free")
		e.Permits, e.Weight = 2, 1
	}},
	{"a lease that was undone leaves what was abandoned before", "", undone},
	{"a lease that was undone is counted", "lease", func(h *builder) {
		undone(h)
		h.at("V redeems").Attempt = 3
	}},
	{"a lease that was undone takes what was abandoned before along", "lease", func(h *builder) {
		undone(h)
		h.at("V redeems").Attempt = 1
	}},
	{"progress of a lease that was undone is passed on", "lease", func(h *builder) {
		undone(h)
		h.at("V redeems").Data = "Z's"
	}},
	{"progress is forgotten with an undone lease", "lease", func(h *builder) {
		undone(h)
		h.at("V redeems").Data = ""
	}},
	{"progress is passed on after a clean end", "lease", func(h *builder) {
		undone(h)
		h.at("Z undoes").Outcome = "release"
		h.at("V redeems").Attempt = 1
	}},
	{"an attempt that must be made once is made again", "lease", func(h *builder) {
		h.drop("A releases", "A leaves", "A enters", "B enters", "B leaves", "B releases")
		h.at("A claims").AtMostOnce = true
		h.at("B claims").Call, h.at("B claims").Return, h.at("B claims").Attempt = 1300*ms, 1310*ms, 2
	}},
	{"an attempt that must be made once is released", "", func(h *builder) {
		h.at("A claims").AtMostOnce = true
	}},
	{"an abandoned lease is not counted", "lease", func(h *builder) { h.at("Z redeems").Attempt = 1 }},
	{"a released lease is counted", "lease", func(h *builder) { h.at("B claims").Attempt = 2 }},
	{"the store forgets, and grants anew", "", func(h *builder) {
		h.o.Forgets = []string{"flush"}
		h.add("flush", 300, 305, history.Event{Kind: history.Fault, Name: "flush", Times: 1})
		h.at("B claims").Call, h.at("B claims").Return = 310*ms, 320*ms
		h.drop("B enters", "B leaves", "B asks")
		h.at("A releases").Error = history.Lost
		h.granted("F claims", 320, 330, "once", "F", "queue", 21).MaxAge = time.Hour
		h.drop("E mismatches", "D is done", "D replies")
	}},
	{"the store forgot, and later a key is held without a holder", "held", func(h *builder) {
		h.o.Forgets = []string{"flush"}
		h.add("flush", 10, 20, history.Event{Kind: history.Fault, Name: "flush", Times: 1})
		h.claim("F is held", 900, 910, "mutex", "F", "try", "held")
	}},
	{"an old server says that a key is held, which is free", "", func(h *builder) {
		h.o.Stale = []string{"split"}
		h.add("split", 850, 1000, history.Event{Kind: history.Fault, Name: "split", Times: 1})
		h.claim("F is held", 900, 910, "mutex", "F", "try", "held")
	}},
	{"an old server says later that a key is held, which is free", "held", func(h *builder) {
		h.o.Stale = []string{"split"}
		h.add("split", 850, 890, history.Event{Kind: history.Fault, Name: "split", Times: 1})
		h.claim("F is held", 900, 910, "mutex", "F", "try", "held")
	}},
	{"an old server grants a key that is held", "lease", func(h *builder) {
		h.o.Stale = []string{"split"}
		h.add("split", 100, 1000, history.Event{Kind: history.Fault, Name: "split", Times: 1})
		h.granted("F claims", 200, 210, "mutex", "F", "try", 12)
	}},
	{"the store forgets, and fences fall", "fences", func(h *builder) {
		h.o.Forgets = []string{"flush"}
		h.add("flush", 300, 305, history.Event{Kind: history.Fault, Name: "flush", Times: 1})
		h.at("B claims").Call, h.at("B claims").Return, h.at("B claims").Fence = 1710*ms, 1720*ms, 9
		h.drop("B enters", "B leaves", "B asks", "B waits", "B releases")
	}},
	{"a key is evicted", "", func(h *builder) {
		h.add("evicted", 280, 290, history.Event{Kind: history.Fault, Name: "evict", Key: "mutex"})
		h.at("B claims").Call, h.at("B claims").Return = 295*ms, 299*ms
		h.drop("B enters", "B leaves", "B asks")
		h.at("A releases").Error = history.Lost
	}},
	{"a fence falls", "fences", func(h *builder) {
		h.at("B claims").Fence = 9
		h.drop("B waits", "B asks")
	}},
	{"a fence is granted twice", "fences", func(h *builder) { h.at("B claims").Fence = 10 }},
	{"one lease has two attempt numbers", "lease", func(h *builder) {
		h.granted("A asks again", 300, 310, "mutex", "A", "queue", 10).Attempt = 2
	}},
}

// undone lets Y save something and abandon its lease, Z save something else and undo its
// lease, and V come next.
func undone(h *builder) {
	h.renew("Y saves", 220, 230, "place", "Y").Data = "Y's"
	h.renew("Z saves", 420, 430, "place", "Z").Data = "Z's"
	h.at("Z redeems").Data = "Y's"
	h.at("Z releases").Outcome, h.at("Z releases").Text = "undo", "Z undoes"
	v := h.granted("V redeems", 600, 610, "place", "V", "queue", 42)
	v.From, v.Attempt, v.Data = "X", 2, "Y's"
}

// losesAndWaits lets U lose the key to W, for which it waits. It is granted in its absence as
// W releases, and does not hear of that.
func losesAndWaits(h *builder) {
	h.granted("U claims", 700, 710, "mutex", "U", "queue", 12)
	h.granted("W claims", 1750, 1760, "mutex", "W", "queue", 13).Attempt = 2
	h.renew("U is late", 1800, 1810, "mutex", "U").Error = history.Lost
	h.claim("U waits", 1820, 1830, "mutex", "U", "queue", "held")
	h.settle("W releases", 1900, 1910, "mutex", "W", "release")
	h.renew("U renews", 1920, 1930, "mutex", "U")
	h.settle("U releases", 1940, 1950, "mutex", "U", "release")
}

const ms10 = 10 * time.Millisecond

// enter and leave are a section of a process, with times in units of 10 ms. Its token is its
// process.
func enter(process, asked, from, left int) history.Event {
	return history.Event{
		Kind: history.Enter, Process: process, Key: "k", Token: string(rune('A' + process)),
		Call: time.Duration(asked) * ms10, Return: time.Duration(from) * ms10, Left: time.Duration(left) * ms10,
	}
}

func leave(process, looked, wrote int) history.Event {
	return history.Event{
		Kind: history.Leave, Process: process, Key: "k", Token: string(rune('A' + process)),
		Call: time.Duration(looked) * ms10, Return: time.Duration(wrote) * ms10,
	}
}

func struck(kind history.Kind, name string, process, from, to int) history.Event {
	return history.Event{Kind: kind, Name: name, Process: process, Call: time.Duration(from) * ms10, Return: time.Duration(to) * ms10}
}

// TestSections: two holders are found, and only where both had reason to rely on the lock.
func TestSections(t *testing.T) {
	for _, test := range []struct {
		name      string
		events    []history.Event
		overlaps  int
		faults    []string
		late      int
		overtaken int
	}{
		{"one after the other", []history.Event{enter(1, 1, 2, 0), leave(1, 10, 10), enter(2, 3, 11, 0), leave(2, 20, 20)}, 0, nil, 0, 0},
		{"at once", []history.Event{enter(1, 1, 2, 0), leave(1, 10, 10), enter(2, 3, 9, 0), leave(2, 20, 20)}, 1, nil, 0, 0},
		{"three at once", []history.Event{
			enter(1, 1, 2, 0), leave(1, 20, 20), enter(2, 3, 9, 0), leave(2, 20, 20), enter(3, 3, 10, 0), leave(3, 20, 20),
		}, 3, nil, 0, 0},
		{"at once, but the second one is killed", []history.Event{enter(1, 1, 2, 0), leave(1, 10, 10), enter(2, 3, 9, 0)}, 1, nil, 0, 0},
		{"the first one is killed", []history.Event{enter(1, 1, 2, 0), enter(2, 3, 9, 0), leave(2, 10, 10)}, 0, nil, 0, 0},
		{"of two keys", []history.Event{
			enter(1, 1, 2, 0), leave(1, 10, 10),
			{Kind: history.Enter, Process: 2, Key: "other", Token: "C", Call: 3 * ms10, Return: 4 * ms10},
			{Kind: history.Leave, Process: 2, Key: "other", Token: "C", Call: 9 * ms10, Return: 9 * ms10},
		}, 0, nil, 0, 0},
		{"after its lease", []history.Event{enter(1, 1, 2, 7), leave(1, 20, 20), enter(2, 3, 9, 0), leave(2, 20, 20)}, 0, nil, 0, 0},
		{"before the end of its lease", []history.Event{enter(1, 1, 2, 9), leave(1, 20, 20), enter(2, 3, 9, 0), leave(2, 20, 20)}, 1, nil, 0, 0},
		{"stopped, and it looks when it continues", []history.Event{
			enter(1, 1, 2, 0), struck(history.Stopped, "", 1, 4, 30), leave(1, 3, 3), enter(2, 3, 20, 0), leave(2, 40, 40),
		}, 0, nil, 0, 0},
		{"stopped, and it writes when it continues", []history.Event{
			enter(1, 1, 2, 0), struck(history.Stopped, "", 1, 4, 30), leave(1, 3, 31), enter(2, 3, 20, 0), leave(2, 40, 40),
		}, 0, nil, 1, 0},
		{"stalled by the machine, and it writes when it continues", []history.Event{
			enter(1, 1, 2, 0), struck(history.Stopped, "stall", 1, 4, 30), leave(1, 3, 31), enter(2, 3, 20, 0), leave(2, 40, 40),
		}, 0, nil, 0, 0},
		{"stopped before it enters", []history.Event{
			enter(2, 1, 4, 0), leave(2, 5, 5), struck(history.Stopped, "", 1, 3, 7), enter(1, 1, 6, 0), leave(1, 8, 8),
		}, 0, nil, 0, 0},
		{"one overlap leads to the next", []history.Event{
			enter(1, 1, 2, 0), leave(1, 10, 10), struck(history.Fault, "cut", 0, 3, 4), enter(2, 3, 9, 0), leave(2, 20, 20), enter(3, 9, 15, 0), leave(3, 20, 20),
		}, 2, []string{"cut"}, 0, 0},
		{"the second one paused while it asked", []history.Event{
			enter(1, 1, 2, 0), leave(1, 10, 10), struck(history.Stopped, "", 2, 4, 8), enter(2, 3, 9, 0), leave(2, 20, 20),
		}, 0, nil, 0, 0},
		{"a third one's stop makes two holders", []history.Event{
			struck(history.Stopped, "", 3, 1, 6), enter(1, 1, 2, 0), leave(1, 10, 10), struck(history.Fault, "cut", 0, 7, 8), enter(2, 3, 9, 0), leave(2, 20, 20),
		}, 1, []string{"cut", "stop"}, 0, 0},
		{"passed by two", []history.Event{
			enter(1, 1, 30, 0), leave(1, 31, 31), enter(2, 2, 10, 0), leave(2, 11, 11), enter(3, 3, 20, 0), leave(3, 21, 21),
		}, 0, nil, 0, 2},
	} {
		l := check.Sections(test.events)
		var faults []string
		if n := len(l.Overlaps); n > 0 {
			faults = l.Overlaps[n-1].Faults
		}
		if len(l.Overlaps) != test.overlaps || !slices.Equal(faults, test.faults) || l.Late != test.late || l.Overtaken != test.overtaken {
			t.Errorf("%s: %+v", test.name, l)
		}
	}
}
