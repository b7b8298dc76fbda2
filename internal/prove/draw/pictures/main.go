// Command pictures draws the pictures of the documentation again, after a page has changed. With
// -record it first runs dibs demo, and records what it prints.
package main

import (
	"errors"
	"flag"
	"log"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/dibs-go/dibs/internal/prove/draw"
)

func main() {
	again := flag.Bool("record", false, "record dibs demo again")
	flag.Parse()
	var err error
	if *again {
		err = record("docs/pictures/demo.cast")
	}
	if err == nil {
		err = draw.Write(".")
	}
	if err != nil {
		log.Fatal("pictures: ", err)
	}
}

// record builds the program, and records a run of its demo.
func record(name string) error {
	dir, err := os.MkdirTemp("", "dibs-record-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "dibs")
	if out, err := exec.Command("go", "build", "-C", "cmd/dibs", "-o", program, ".").CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	demo := exec.Command(program, "demo", "--exit")
	output, err := demo.StdoutPipe()
	if err == nil {
		err = demo.Start()
	}
	if err != nil {
		return err
	}
	f, err := os.Create(name)
	if err == nil {
		err = errors.Join(draw.Record(f, "dibs demo --exit", output), f.Close())
	}
	return errors.Join(err, demo.Wait())
}
