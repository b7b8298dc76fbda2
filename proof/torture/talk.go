package torture

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// task is what a worker is started with. It may have a password in it, and comes by
// standard input.
type task struct {
	URL       string        `json:"url"`
	Namespace string        `json:"namespace"`
	Run       string        `json:"run"` // names the table of effects
	Process   int           `json:"process"`
	Life      int           `json:"life"`
	Processes int           `json:"processes"`
	Lanes     int           `json:"lanes"`
	Seed      uint64        `json:"seed"`
	TTL       time.Duration `json:"ttl"`
	Pause     time.Duration `json:"pause"` // of a lane between two things, on average
	Begin     time.Duration `json:"begin"` // when the run began, as history.Now tells it
	Crash     bool          `json:"crash"` // it may kill itself
}

// command is what a worker is told, one of them.
type command struct {
	Thawed uint64 `json:"thawed,omitempty"` // the number of a Freeze that is over
	Peace  bool   `json:"peace,omitempty"`  // do nothing to yourself any more
	Calm   bool   `json:"calm,omitempty"`   // no fault will come any more
	End    bool   `json:"end,omitempty"`    // end in order
}

// message is what a worker tells, one of them.
type message struct {
	Ready  bool   `json:"ready,omitempty"`
	Failed string `json:"failed,omitempty"` // what the store said in place of an answer
	Lost   bool   `json:"lost,omitempty"`   // a lease
	Crash  string `json:"crash,omitempty"`  // it kills itself now, at this place
	Freeze uint64 `json:"freeze,omitempty"` // it wants to be stopped beyond its leases, and to be told when that is over
	Peace  bool   `json:"peace,omitempty"`  // it does nothing to itself any more

	// Write asks the resource of a key to take a write with a fence. Who writes is not told
	// whether it was taken: it would do nothing else.
	Write  bool   `json:"write,omitempty"`
	Key    string `json:"key,omitempty"`
	Token  string `json:"token,omitempty"`
	Fence  uint64 `json:"fence,omitempty"`
	Stuck  string `json:"stuck,omitempty"` // a key that could not be had in the calm, and why
	Swept  int    `json:"swept,omitempty"` // that many keys could, in the calm
	Ended  *ended `json:"ended,omitempty"`
	Broken string `json:"broken,omitempty"` // why it cannot go on
}

// ended is what a worker has left when it ends in order.
type ended struct {
	Errors     []string `json:"errors,omitempty"`     // of closing
	Goroutines int      `json:"goroutines,omitempty"` // more than at the start
	Stacks     string   `json:"stacks,omitempty"`     // of these
	Files      []string `json:"files,omitempty"`      // that are open and were not at the start, connections among them
}

// mouth writes lines, from many goroutines.
type mouth struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func newMouth(w io.Writer) *mouth { return &mouth{enc: json.NewEncoder(w)} }

// say writes one line. Who listens may be gone, and then nothing can be done.
func (m *mouth) say(what any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.enc.Encode(what)
}
