//go:build !linux

package main

// filesystem names the kind of file system that a folder is on; it is not known here.
func filesystem(string) string { return "an unknown file system" }
