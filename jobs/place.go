package jobs

import (
	"cmp"
	"slices"
	"time"
)

const (
	// placedAtOnce is how many jobs are put in their places in a line at a time.
	placedAtOnce = 32
	// inFront is how many at the front of a line they are compared with.
	inFront = 16
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

// placed notes that some are in their places among those of their line: by their
// positions, which may be more exact now than they were for those in front.
func (l *lines) placed(of *line, among, fresh []*away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortStableFunc(among[:min(inFront, len(among))], func(v, w *away) int { return cmp.Compare(v.at, w.at) })
	for _, w := range fresh {
		i := len(among)
		for i > 0 && among[i-1].at > w.at {
			i--
		}
		among = slices.Insert(among, i, w)
	}
	of.fresh = slices.DeleteFunc(of.fresh, func(w *away) bool { return slices.Contains(fresh, w) })
	of.away = slices.DeleteFunc(among, (*away).over)
	of.change()
}

// place puts jobs where they belong among those of their line: mostly at the end.
// Places of a key keep their order, so that looking at two tells which comes first. It
// does for those in front, whose turn is near. Where looks are not answered at one moment
// the numbers may have fallen in between, and some are compared by where they were when
// they were looked at: there the order is not so exact.
func (l *lines) place(of *line, fresh, among []*away) error {
	switch {
	case len(fresh) > 1 || !fresh[0].after(among):
		those := append(slices.Clone(fresh), among[max(0, len(among)-1):]...)
		if front := among[:min(inFront, len(among))]; l.reaches(fresh, front) {
			those = append(those, front[:min(inFront, len(among)-1)]...)
		}
		if err := l.compare(those); err != nil {
			return err
		}
		slices.SortStableFunc(fresh, nearer)
	case len(among) > 0:
		l.follow(fresh[0], among[len(among)-1])
	}
	l.placed(of, among, fresh)
	return nil
}

// reaches reports whether some may come before the last of those.
func (l *lines) reaches(fresh, those []*away) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(those) > 0 && slices.ContainsFunc(fresh, func(w *away) bool { return w.at <= those[len(those)-1].at })
}

// follow notes that w comes after v.
func (l *lines) follow(w, v *away) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.at = max(w.at, v.at)
}

// compare notes how many come before these jobs now; -1 for one that has nothing to
// wait for.
func (l *lines) compare(those []*away) error {
	from := time.Now()
	standings, err := l.look(those)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range those {
		w.ahead, w.from, w.to = standings[i].Ahead, from, time.Now()
		if standings[i].Waits {
			w.at = l.seen(w.place.Key, w.at, w.ahead)
		} else {
			w.ahead = -1
		}
	}
	for _, w := range those { // by what all of them have shown
		w.at = l.moves[w.place.Key].gone + w.ahead
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
