package quantity

import "time"

// A DurationFlag is the value of a flag that is a duration. It is a flag.Value and a pflag.Value.
type DurationFlag time.Duration

// Set sets the duration from its text.
func (f *DurationFlag) Set(text string) error {
	d, err := Duration(text)
	if err == nil {
		*f = DurationFlag(d)
	}
	return err
}

// String returns the duration's text.
func (f *DurationFlag) String() string { return DurationText(time.Duration(*f)) }

// Type returns the word that help shows.
func (f *DurationFlag) Type() string { return "duration" }

// A SizeFlag is the value of a flag that is a number of bytes. It is a flag.Value and a pflag.Value.
type SizeFlag int64

// Set sets the size from its text.
func (f *SizeFlag) Set(text string) error {
	n, err := Size(text)
	if err == nil {
		*f = SizeFlag(n)
	}
	return err
}

// String returns the size's text.
func (f *SizeFlag) String() string { return SizeText(int64(*f)) }

// Type returns the word that help shows.
func (f *SizeFlag) Type() string { return "size" }
