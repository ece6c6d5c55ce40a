package main

import (
	"errors"
	"fmt"
)

// bulkChange changes many objects with one command. T is the type of the answer, which has the number of changed
// objects.
type bulkChange[T any] struct {
	send     func(dryRun bool) (T, error)              // changes the objects, or only counts them
	question func(counted T) string                    // returns the question to the user, or "" if nothing would be changed
	describe func(changed T, participle string) string // returns the result as a sentence

	done, wouldBe string // the participle after a change, such as "paused", and after a dry run, such as "would be paused"
}

// confirmAndChange counts the objects, asks for confirmation unless isConfirmed is true, changes the objects, and writes the result. If
// dryRun is true, it only counts. If an error interrupts the change, it writes which part of the change was made.
func (b bulkChange[T]) confirmAndChange(output *console, isConfirmed, dryRun bool) error {
	result, err := b.send(true)
	if err != nil {
		return err
	}
	participle := b.wouldBe
	if !dryRun {
		participle = b.done
		if question := b.question(result); question != "" {
			if err := output.confirm(isConfirmed, question); err != nil {
				return err
			}
			result, err = b.send(false)
		}
	}
	if output.isJSON {
		return errors.Join(err, writeJSON(output.out, result, jsonIndent))
	}
	_, printErr := fmt.Fprintln(output.out, b.describe(result, participle))
	return errors.Join(err, printErr)
}
