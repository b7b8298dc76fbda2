// Command pictures draws the pictures of the documentation again, after a page has changed.
package main

import (
	"log"

	"github.com/dibs-go/dibs/internal/draw"
)

func main() {
	if err := draw.Write("."); err != nil {
		log.Fatal("pictures: ", err)
	}
}
