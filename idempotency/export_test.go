package idempotency

// InMemory returns the options of a Middleware that keeps bodies of at most n bytes in memory.
func (o Options) InMemory(n int64) *Options {
	o.maxMemory = n
	return &o
}
