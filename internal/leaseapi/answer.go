package leaseapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/dibs-go/dibs/store"
)

// Answer is an element of the answer to a call. A renewal and a settlement have an Error or
// nothing.
type Answer struct {
	State     string  `json:"state,omitempty"`
	Namespace string  `json:"namespace,omitempty"` // of the key, for a client whose credential decides it
	Fence     string  `json:"fence,omitempty"`     // digits, because JavaScript's numbers are too short
	Attempt   int     `json:"attempt,omitempty"`
	Progress  []byte  `json:"progress,omitempty"`
	Left      int64   `json:"left_ms,omitempty"`
	Ahead     int     `json:"ahead,omitempty"`
	Queued    bool    `json:"queued,omitempty"`
	Record    *Record `json:"record,omitempty"`
	ID        string  `json:"id,omitempty"`
	Error     *Error  `json:"error,omitempty"`
}

// Record is a record in an answer.
type Record struct {
	Data []byte `json:"data"`
	Age  int64  `json:"age_ms"`
	Left int64  `json:"left_ms"`
}

// Error says why an element failed alone, with nothing done for it.
type Error struct {
	// Type is one of the ErrorTypes. Programs act on it.
	Type   string `json:"type"`
	Detail string `json:"detail,omitempty"`
}

// errorTypes are the errors of an element, the first that matches.
var errorTypes = []struct {
	name string
	err  error
}{
	{"lost", store.ErrLost},
	{"too_large", store.ErrTooLarge},
	{"full", store.ErrFull},
	{"busy", store.ErrBusy},
}

// Invalid is the type of an element that no store accepts.
const Invalid = "invalid"

// ErrorOf returns an element's error for the answer; nil for nil.
func ErrorOf(err error) *Error {
	if err == nil {
		return nil
	}
	for _, t := range errorTypes {
		if errors.Is(err, t.err) {
			return &Error{t.name, err.Error()}
		}
	}
	return &Error{Invalid, err.Error()}
}

// Err returns the error that ErrorOf was given; nil for nil.
func (e *Error) Err() error {
	if e == nil {
		return nil
	}
	for _, t := range errorTypes {
		if e.Type == t.name {
			if e.Detail == "" || e.Detail == t.err.Error() {
				return t.err
			}
			return &elementError{t.err, e.Detail}
		}
	}
	return errors.New(e.Detail)
}

// elementError has the text of the server and is the error of its type.
type elementError struct {
	err    error
	detail string
}

func (e *elementError) Error() string { return e.detail }
func (e *elementError) Unwrap() error { return e.err }

var states = map[store.State]string{
	store.Granted: "granted", store.Held: "held", store.Free: "free",
	store.Done: "done", store.Mismatch: "mismatch", store.Unknown: "unknown",
}

// AnswerOf returns the answer to a claim.
func AnswerOf(a *store.Answer) Answer {
	if a.Err != nil {
		return Answer{Error: ErrorOf(a.Err)}
	}
	out := Answer{
		State: states[a.State], Attempt: a.Attempt, Progress: a.Progress,
		Left: millis(a.Left), Ahead: a.Ahead, Queued: a.Queued, ID: a.ID,
	}
	if a.Fence != 0 {
		out.Fence = strconv.FormatUint(a.Fence, 10)
	}
	if a.State == store.Done {
		out.Record = &Record{a.Record.Data, a.Record.Age.Milliseconds(), millis(a.Record.Left)}
	}
	return out
}

// Claim returns the answer to a claim.
func (a *Answer) Claim() (c store.Answer, err error) {
	if a.Error != nil {
		return store.Answer{Err: a.Error.Err()}, nil
	}
	c = store.Answer{
		Attempt: a.Attempt, Progress: a.Progress, Left: fromMillis(a.Left), Ahead: a.Ahead, Queued: a.Queued, ID: a.ID,
	}
	for state, name := range states {
		if name == a.State {
			c.State = state
		}
	}
	if c.State == 0 {
		return c, fmt.Errorf("the server answered with the state %q", a.State)
	}
	if a.Fence != "" {
		if c.Fence, err = strconv.ParseUint(a.Fence, 10, 64); err != nil {
			return c, fmt.Errorf("the server answered with the fence %q", a.Fence)
		}
	}
	if a.Record != nil {
		c.Record = store.Record{Data: a.Record.Data, Age: time.Duration(a.Record.Age) * time.Millisecond, Left: fromMillis(a.Record.Left)}
	}
	return c, nil
}

// answers is the body of every answer.
type answers struct {
	Answers []Answer `json:"answers"`
}

// WriteAnswers writes the body of an answer.
func WriteAnswers(a []Answer) []byte { return marshal(answers{a}) }

// ReadAnswers reads the body of an answer to n elements. Fields that it does not know are
// ignored, so that a client is older than its server.
func ReadAnswers(body []byte, n int) ([]Answer, error) {
	var a answers
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	if len(a.Answers) != n {
		return nil, fmt.Errorf("the server answered %d of %d elements", len(a.Answers), n)
	}
	return a.Answers, nil
}
