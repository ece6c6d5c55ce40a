// Command planted measures the strength of the tests by planted mistakes. Each mistake is a row of a table and
// breaks a promise of the product. The command makes one mistake at a time in a copy of the tree. It prints which
// test catches each mistake, and how many mistakes were caught. It fails if a mistake cannot be made or does not
// compile, but not if no test catches a mistake. Run it with `make planted`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"

	"github.com/fleetslots/dispatcher/internal/test/mutation"
)

func main() {
	rows := flag.String("rows", "", "make only the mistakes whose name (\"PACKAGE FUNCTION: PROMISE\") matches this regular expression")
	workers := flag.Int("workers", 2, "how many mistakes are tried at a time")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *rows, *workers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run tries the planted mistakes. The working directory must be the root of the module.
func run(ctx context.Context, w io.Writer, rows string, workers int) error {
	match, err := regexp.Compile(rows)
	if err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	all, err := locateAll(".")
	if err != nil {
		return err
	}
	lastCaught, err := readCaught(caughtFile)
	if err != nil {
		return err
	}
	var chosen []mutation.Mistake
	for _, m := range all {
		if match.MatchString(m.Name) {
			m.LastCaughtBy = lastCaught[m.Name]
			chosen = append(chosen, m)
		}
	}
	report, err := mutation.Run(ctx, w, ".", workers, chosen)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprint(w, report); err != nil {
		return err
	}
	maps.Copy(lastCaught, report.CaughtBy)
	if err := writeCaught(caughtFile, lastCaught); err != nil {
		return err
	}
	if report.Unbuildable > 0 {
		return errors.New("a planted mistake must compile")
	}
	return nil
}

// locateAll returns the edits for all planted mistakes in the tree at root.
func locateAll(root string) ([]mutation.Mistake, error) {
	var all []mutation.Mistake
	var failed []error
	for _, m := range Mistakes() {
		located, err := m.toEdit(root)
		all, failed = append(all, located), append(failed, err)
	}
	return all, errors.Join(failed...)
}
