//go:build unix && !linux

package process

// adopt reports that orphans go to the first process, which reaps them on these systems.
func adopt() bool { return false }

func onlyZombies(int) bool { return false }
