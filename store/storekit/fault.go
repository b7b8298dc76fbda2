package storekit

import "fmt"

// Fault is a server's error with its meaning.
type Fault struct {
	Is   error  // the meaning, for errors.Is
	Said error  // the server's or its driver's error, or nil
	Text string // printed instead of Said, unless it is ""
	Cure string // what to do about it, or ""
}

// NotThere is the cure if no connection could be made, so nothing was called.
const NotThere = "check that it runs and listens at the address, and that no firewall is in between"

func (f *Fault) Error() string {
	text := f.Text
	if text == "" {
		text = f.Said.Error()
	}
	if f.Cure == "" {
		return fmt.Sprintf("%v: %s", f.Is, text)
	}
	return fmt.Sprintf("%v: %s (%s)", f.Is, text, f.Cure)
}

// Unwrap makes errors.Is and errors.As work.
func (f *Fault) Unwrap() []error {
	if f.Said == nil {
		return []error{f.Is}
	}
	return []error{f.Is, f.Said}
}
