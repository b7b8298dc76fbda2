package memstore

// Kept returns how many keys and bytes the store has counted.
func (s *Store) Kept() (keys, bytes int64) { return s.keys.Load(), s.bytes.Load() }
