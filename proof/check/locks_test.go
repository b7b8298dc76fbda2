package check_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
)

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
