package wire

// Holding is how many messages the wire holds now.
func (w *Wire) Holding() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holding
}
