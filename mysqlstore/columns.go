package mysqlstore

// The columns of the tables whose rows are loaded and written as a whole, and where they
// are kept. The fence of the lease in a key's row is the key's, its permits are one.

const (
	keyColumns = "k,fence,busy,free,token,attempt,since,ends,once,seq,heir,fingerprint,owner," +
		"rec_token,rec_written,rec_ends,rec_fingerprint"
	holderColumns = "k,token,abandoned,fence,attempt,since,ends,once,seq,heir,permits,weight,fingerprint,owner"
	waiterColumns = "k,seq,token,kind,ends,owner,ttl,permits,weight,once,max_age,tells,fingerprint,hold,asked"
)

func (w *row) columns() []any {
	h, r := &w.holder, &w.record
	return []any{
		&w.fence, &w.busy, &w.free, &h.token, &h.attempt, &h.since, &h.ends, &h.once, &h.seq, &h.heir, &h.fingerprint, &h.owner,
		&r.token, &r.written, &r.ends, &r.fingerprint,
	}
}

func (l *lease) columns() []any {
	return []any{
		&l.token, &l.abandoned, &l.fence, &l.attempt, &l.since, &l.ends, &l.once, &l.seq, &l.heir, &l.permits, &l.weight,
		&l.fingerprint, &l.owner,
	}
}

func (p *place) columns() []any {
	return []any{
		&p.seq, &p.token, &p.kind, &p.ends, &p.owner, &p.ttl, &p.permits, &p.weight, &p.once, &p.maxAge, &p.tells, &p.fingerprint,
		&p.hold, &p.asked,
	}
}
