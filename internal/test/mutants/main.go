// Command mutants measures the strength of the tests by random mistakes. It draws random mistakes in the Go source of some rooms (see
// productFolders) and makes one at a time in a copy of the tree. It prints the share of mistakes that the tests catch, and lists the
// mistakes that no test catches (survivors). Run it with `make mutants`.
//
// Limits: some mistakes change nothing observable (a log line, the capacity of a slice), so the share cannot reach 1. Only shares of the
// same seed can be compared.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/fleetslots/dispatcher/internal/test/mutation"
)

func main() {
	seed := flag.Uint64("seed", 1, "the seed of the draw")
	number := flag.Int("n", 300, "how many mistakes are drawn")
	workers := flag.Int("workers", 2, "how many mistakes are tried at a time")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *seed, *number, *workers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run tries random mistakes. The working directory must be the root of the module.
func run(ctx context.Context, w io.Writer, seed uint64, number, workers int) error {
	drawn, err := Draw(".", seed, number)
	if err != nil {
		return err
	}
	report, err := mutation.Run(ctx, w, ".", workers, drawn)
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(w, report)
	return err
}
