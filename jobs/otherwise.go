package jobs

// Otherwise is what becomes of a job whose Limit is over. There is no default: it has to
// be chosen.
type Otherwise uint8

const (
	// Fail fails this attempt with dibs.ErrHeld.
	Fail Otherwise = iota + 1
	// RunAnyway runs the job without its key.
	RunAnyway
	// GiveUp hands the job to Options.GaveUp, which has to note it down; the job is done.
	GiveUp
)
