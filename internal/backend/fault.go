package backend

import "fmt"

// Fault is a server's error with its meaning.
type Fault struct {
	Is   error  // what it means, for errors.Is
	Said error  // what the server or its driver said
	Text string // Said, for people, or instead of it; "": Said as it is
	Cure string // what to do about it; "" where nothing is known
}

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
