package jobs

import (
	"cmp"
	"slices"
	"time"
)

const (
	// placedAtOnce is how many jobs are put in their places in a line at a time.
	placedAtOnce = 32
	// pivots is with how many of a line a job is compared at a time.
	pivots = 7
)

// placing puts the jobs of a key that were put off in their places in its line, beside
// its watcher, until there are no more.
func (l *lines) placing(of *line) {
	for {
		fresh, among := l.fresh(of)
		if len(fresh) == 0 {
			return
		}
		if err := l.place(of, fresh, among); err != nil {
			l.mutex.pause(l.life, time.Second) // the store is away
		}
	}
}

// fresh returns some of those that were put off since, and those of their line.
func (l *lines) fresh(of *line) (fresh, among []*away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.fresh = slices.DeleteFunc(of.fresh, (*away).over)
	if len(of.fresh) == 0 || l.life.Err() != nil {
		of.placing = false
		of.change()
		return nil, nil
	}
	// Those that come soon are not to wait for those that do not.
	slices.SortStableFunc(of.fresh, nearer)
	n := min(len(of.fresh), placedAtOnce)
	return slices.Clone(of.fresh[:n]), slices.DeleteFunc(slices.Clone(of.away), (*away).over)
}

// placed notes that jobs are in their places among those of their line.
func (l *lines) placed(of *line, among, fresh []*away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of.away = slices.DeleteFunc(slices.Clone(among), (*away).over)
	of.fresh = slices.DeleteFunc(of.fresh, func(w *away) bool { return slices.Contains(fresh, w) })
	of.change()
}

// place puts jobs where they belong among those of their line: mostly at the end.
// Places of a key keep their order, so that looking at two tells which comes first.
// Where looks are not answered at one moment, the numbers may have fallen in between,
// and the order is not so exact.
func (l *lines) place(of *line, fresh, among []*away) error {
	if len(fresh) > 1 || !fresh[0].after(among) {
		if err := l.compare(append(slices.Clone(fresh), among[max(0, len(among)-1):]...)); err != nil {
			return err
		}
		slices.SortStableFunc(fresh, nearer)
	}
	inside := 0 // how many do not belong at the end
	if n := len(among); n > 0 {
		for inside < len(fresh) && fresh[inside].ahead <= among[n-1].ahead {
			inside++
		}
	}
	if among = append(among, fresh[inside:]...); inside < len(fresh) {
		l.placed(of, among, fresh[inside:])
	}
	for i, w := range fresh[:inside] {
		at, err := l.find(among, w)
		if err != nil {
			return err
		}
		among = slices.Insert(among, at, w)
		l.placed(of, among, fresh[i:i+1])
	}
	return nil
}

// find returns where a job belongs in a line.
func (l *lines) find(among []*away, w *away) (int, error) {
	low, high := 0, len(among)
	for low < high {
		n := min(pivots, high-low)
		those := make([]*away, n, n+1)
		for i := range those {
			those[i] = among[low+(high-low)*(i+1)/n-1]
		}
		if err := l.compare(append(those, w)); err != nil {
			return 0, err
		}
		from := low
		for i, v := range those {
			at := from + (high-from)*(i+1)/n - 1
			if v.ahead >= w.ahead {
				high = at
				break
			}
			low = at + 1
		}
	}
	return low, nil
}

// compare notes how many come before these jobs now; -1 for one that has nothing to
// wait for.
func (l *lines) compare(those []*away) error {
	from := time.Now()
	standings, err := l.look(those)
	if err != nil {
		return err
	}
	for i, w := range those {
		w.aheadAt = aheadAt{ahead: standings[i].Ahead, from: from, to: time.Now()}
		if !standings[i].Waits {
			w.ahead = -1
		}
	}
	return nil
}

// after reports whether a job certainly comes after those of its line, as the last one
// had no more before it by the time this one was looked at.
func (w *away) after(among []*away) bool {
	if len(among) == 0 {
		return true
	}
	last := among[len(among)-1]
	return w.ahead > last.ahead && !w.from.Before(last.to)
}

func nearer(v, w *away) int { return cmp.Compare(v.ahead, w.ahead) }
