package engine

// Changes are what a store writes. A row is the key and the Fields; a row to delete has the
// columns that are named here.
type Changes struct {
	Rows      [][]any // of keys; the rows exist
	NoLeases  [][]any // delete: key, token, abandoned
	Leases    [][]any // insert or update
	NoNumbers [][]any // delete: key, seq of all places with that number
	NoPlaces  [][]any // delete: key, seq, token
	Places    [][]any // insert or update
	Steps     []Step  // in the order in which they happened
}

// Does is what a Step does.
type Does uint8

// What a store writes besides rows, and what it reads meanwhile.
const (
	WriteRecord   Does = iota // write Data
	EraseRecord               // delete its data
	WriteProgress             // write Data under the Fence
	DropProgress              // delete the data of the Fence
	ReadRecord                // read its data into To
	ReadProgress              // read the data of the Fence into To
	ReadSize                  // read the size of the record's data into Size
)

// Step writes or reads data, which may be large.
type Step struct {
	Does  Does
	K     string // the key
	Fence int64
	Data  []byte
	To    *[]byte
	Size  *int
}

func (st *State) step(s Step) {
	s.K = st.k
	st.steps = append(st.steps, s)
}

// Changes returns the difference between what was loaded and the states.
func (b *Batch) Changes() *Changes {
	c := &Changes{}
	for _, k := range b.Keys {
		st := b.states[k]
		if !b.readOnly {
			st.tidy()
			st.changes(c)
		}
		for _, s := range st.steps {
			if !b.readOnly || s.Does >= ReadRecord {
				c.Steps = append(c.Steps, s)
			}
		}
	}
	return c
}

// Whole returns all that there is of a key after the Changes, for stores that write keys as a whole.
// Saved progress and the data of the record are in their Steps.
func (b *Batch) Whole(k string) (row Row, leases []Lease, places []Place) {
	st := b.states[k]
	for _, p := range st.queue.places {
		places = append(places, *p)
	}
	return st.Row(), st.apart(), places
}

// apart returns the leases that have rows of their own.
func (st *State) apart() (all []Lease) {
	for _, l := range st.leases.all {
		if l.Permits != 1 || st.nextFence != nil {
			all = append(all, l)
		}
	}
	if st.abandoned != nil {
		all = append(all, *st.abandoned)
	}
	return all
}

func (st *State) changes(c *Changes) {
	row := func(fields ...any) []any { return append([]any{st.k}, fields...) }
	if w := st.Row(); st.was.There && w != st.was {
		c.Rows = append(c.Rows, row(w.Fields()...))
	}
	all, left := st.apart(), map[leaseID]bool{}
	for i := range all {
		l := &all[i]
		id := leaseID{l.Token, l.Abandoned}
		left[id] = true
		if was := st.others[id]; was == nil || *was != *l {
			c.Leases = append(c.Leases, row(l.Fields()...))
		}
	}
	for id := range st.others {
		if !left[id] {
			c.NoLeases = append(c.NoLeases, row(id.token, id.abandoned))
		}
	}
	q := &st.queue
	for _, seq := range q.cleared {
		c.NoNumbers = append(c.NoNumbers, row(seq))
	}
	kept := map[placeID]bool{}
	for _, p := range q.places {
		id := placeID{p.Seq, p.Token}
		kept[id] = true
		now := *p
		now.woken = false // it is not a column
		if was := q.was[id]; was == nil || *was != now {
			c.Places = append(c.Places, row(p.Fields()...))
		}
	}
	for id := range q.was {
		if !kept[id] {
			c.NoPlaces = append(c.NoPlaces, row(id.seq, id.token))
		}
	}
}
