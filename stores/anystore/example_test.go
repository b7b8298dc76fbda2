package anystore_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/stores/anystore"
)

// A program that takes its store from the environment, as the command does. Without DIBS_STORE
// it ends: a store that was guessed would be another one than that of its other processes.
func ExampleOpen() {
	os.Setenv("DIBS_STORE", "memory:") // as the operator does who starts the program
	ctx := context.Background()
	url, err := anystore.FromEnvironment(os.Getenv)
	if err != nil {
		log.Fatal(err)
	}
	opened, err := anystore.Open(ctx, url, anystore.ToUse)
	if err != nil {
		log.Fatal(err)
	}
	defer opened.Close()
	client, err := dibs.New(opened.Store, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	err = client.Do(ctx, "invoice 42", func(context.Context) error {
		fmt.Println("alone, on", opened)
		return nil
	})
	fmt.Println(err)
	// Output:
	// alone, on memory:
	// <nil>
}
