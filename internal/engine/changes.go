package engine

// Changes are what has to be written. A row is the key and the fields; of one that is to
// be deleted it has what is named here.
type Changes struct {
	Rows      [][]any // of keys; they are there
	NoLeases  [][]any // the key, token and abandoned
	Leases    [][]any // may be there
	NoNumbers [][]any // the key, and the seq of all places
	NoPlaces  [][]any // the key, seq and token
	Places    [][]any // may be there, with another token too
	Steps     []Step  // in the order in which they happened
}

// Does is what a Step does.
type Does uint8

// What there is to write besides rows, and to read on the way.
const (
	WriteRecord   Does = iota // Data
	EraseRecord               // its data
	WriteProgress             // Data, under the Fence
	DropProgress              // that of the Fence
	ReadRecord                // its data, To
	ReadProgress              // that of the Fence, To
	ReadSize                  // that of the record's data
)

// Step does something with data, which may be large.
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

// Changes returns what is different from what was loaded.
func (b *Batch) Changes() *Changes {
	c := &Changes{}
	for _, k := range b.Keys {
		st := b.states[k]
		if !b.looks {
			st.tidy()
			st.changes(c)
		}
		for _, s := range st.steps {
			if !b.looks || s.Does >= ReadRecord {
				c.Steps = append(c.Steps, s)
			}
		}
	}
	return c
}

func (st *State) changes(c *Changes) {
	row := func(fields ...any) []any { return append([]any{st.k}, fields...) }
	if w := st.row(); st.was.There && w != st.was {
		c.Rows = append(c.Rows, row(w.Fields()...))
	}
	all, left := st.holders, map[leaseID]bool{}
	if st.lost != nil {
		all = append(all[:len(all):len(all)], *st.lost)
	}
	for i := range all {
		l := &all[i]
		if l.Permits == 1 && !l.Abandoned {
			continue // in the key's row
		}
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
	for _, seq := range q.gone {
		c.NoNumbers = append(c.NoNumbers, row(seq))
	}
	stay := map[placeID]bool{}
	for _, p := range q.places {
		id := placeID{p.Seq, p.Token}
		stay[id] = true
		if was := q.was[id]; was == nil || *was != *p {
			c.Places = append(c.Places, row(p.Fields()...))
		}
	}
	for id := range q.was {
		if !stay[id] {
			c.NoPlaces = append(c.NoPlaces, row(id.seq, id.token))
		}
	}
}
