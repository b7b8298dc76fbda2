package jobs

import (
	"sync"
	"time"
)

// mean is a mean of durations of which the latest count most.
type mean struct {
	rises time.Duration // by how much of the difference a longer one counts: 1 / rises
	falls time.Duration // and a shorter one: 1 / falls

	mu    sync.Mutex
	value time.Duration
	known bool
}

const (
	// A job that is thought to run for too long has others come too late. One that is
	// thought to run too briefly has them come too early, which costs little. With the
	// way back it is the other way round.
	runsRiseBy, runsFallBy   = 8, 2
	pathsRiseBy, pathsFallBy = 2, 32
)

func (m *mean) add(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.known {
		m.value, m.known = d, true
		return
	}
	if d < m.value {
		m.value += (d - m.value) / m.falls
	} else {
		m.value += (d - m.value) / m.rises
	}
}

func (m *mean) read() (d time.Duration, known bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.value, m.known
}

const (
	// pathGuess is how long a queue is thought to take to bring a job back, while
	// that is not known.
	pathGuess = 300 * time.Millisecond
	// runGuess is how long jobs are thought to run, while that is not known.
	runGuess = 20 * time.Millisecond
	// sentFor is how much sooner the turn of a job must come for another one to go back
	// to its queue for it.
	sentFor = 100 * time.Millisecond
	// backIn is within what time a job that is put off cannot count on being back: River
	// notes that one was put off 250 ms later.
	backIn = 300 * time.Millisecond
	// seatsFor is for how many times as many jobs of a key as this process has seats there
	// are thought to be some, in all processes.
	seatsFor = 2
	// maxNear is from how many places ahead on no job waits in a worker.
	maxNear = 64
	// comesMin and comesMax bound for how long a seat is kept for a job that was made
	// runnable.
	comesMin = 50 * time.Millisecond
	comesMax = time.Second
)

// comes is for how long a seat is kept for a job that was made runnable: twice as long
// as the queue takes. Another process may have it.
func (m *Mutex) comes() time.Duration {
	path, known := m.paths.read()
	if !known {
		path = pathGuess
	}
	return min(max(2*path, comesMin), comesMax)
}

// takes is how long it is thought to take until the next job of a key has its turn.
func (m *Mutex) takes() time.Duration {
	run, known := m.runs.read()
	if !known {
		run = runGuess
	}
	return run / time.Duration(m.options.Permits)
}

// near returns how close to its turn a job waits in the worker, or is brought back to
// one: as many jobs of its key as run in the time that this takes, and half as many
// more, have to be there already for the key not to lie idle. It takes a look that finds
// the job near, the way back, and the asking from there. Those for whom there can hardly
// be seats in their pool are not brought back: they would be put off again, and be away
// for longer.
func (m *Mutex) near(r *room) int {
	run, known := m.runs.read()
	if !known {
		return max(r.seats, 1)
	}
	path, known := m.paths.read()
	if !known {
		path = pathGuess
	}
	ask, _ := m.asks.read()
	n := 1 + int(3*(path+2*ask)/(2*max(run, time.Millisecond)))
	return min(n, maxNear, seatsFor*r.seats) * m.options.Permits
}
