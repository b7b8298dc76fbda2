package torture

import (
	"encoding/json"
	"io"
	"sync"
	"time"
)

// task is what a worker gets when it starts. It comes by standard input, because it may contain
// a password.
type task struct {
	URL       string        `json:"url"`
	Namespace string        `json:"namespace"`
	Run       string        `json:"run"` // names the table of effects
	Process   int           `json:"process"`
	Restarts  int           `json:"restarts"`
	Processes int           `json:"processes"`
	Lanes     int           `json:"lanes"`
	Seed      uint64        `json:"seed"`
	TTL       time.Duration `json:"ttl"`
	Pause     time.Duration `json:"pause"` // of a lane between two actions, on average
	Begin     time.Duration `json:"begin"` // when the run began, by history.Now
	Crash     bool          `json:"crash"` // it may crash and freeze by itself
}

// command is one command to a worker.
type command struct {
	Thawed   uint64 `json:"thawed,omitempty"`   // the number of a Freeze that is over
	NoCrash  bool   `json:"noCrash,omitempty"`  // do not crash and freeze any more
	Recovery bool   `json:"recovery,omitempty"` // the last fault is over
	End      bool   `json:"end,omitempty"`      // end in order
}

// message is one message of a worker.
type message struct {
	Ready   bool   `json:"ready,omitempty"`
	Failed  string `json:"failed,omitempty"`  // an error of the store
	Lost    bool   `json:"lost,omitempty"`    // a lease
	Crash   string `json:"crash,omitempty"`   // it crashes now, at this place
	Freeze  uint64 `json:"freeze,omitempty"`  // it asks to be stopped for longer than its leases; the number comes back as Thawed
	NoCrash bool   `json:"noCrash,omitempty"` // it does not crash and freeze any more

	// Write is a write to the fenced resource of Key with Fence.
	Write  bool   `json:"write,omitempty"`
	Key    string `json:"key,omitempty"`
	Fence  uint64 `json:"fence,omitempty"`
	Stuck  string `json:"stuck,omitempty"` // a key that could not be acquired again, and why
	Swept  int    `json:"swept,omitempty"` // how many keys could
	Ended  *ended `json:"ended,omitempty"`
	Broken string `json:"broken,omitempty"` // why it cannot go on
}

// ended is what a worker leaves behind when it ends in order.
type ended struct {
	Errors     []string `json:"errors,omitempty"`     // of closing
	Goroutines int      `json:"goroutines,omitempty"` // more than at the start
	Stacks     string   `json:"stacks,omitempty"`     // of these
	Files      []string `json:"files,omitempty"`      // and connections that were not open at the start
}

// sender writes lines. It may be used concurrently.
type sender struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func newSender(w io.Writer) *sender { return &sender{enc: json.NewEncoder(w)} }

// send writes one line. The receiver may have ended; then nothing can be done.
func (m *sender) send(what any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.enc.Encode(what)
}
