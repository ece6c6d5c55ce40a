// Package rescue begins the goroutines of a server: a panic in one of them ends what it
// was doing, and never the process. TestNoGoroutineEndsTheProcess refuses every other
// way to begin one.
//
// Where somebody waits for the outcome a panic is an error (Call, Async, Group), which is
// told where errors are logged (Told.Tell). Where nobody waits it is told at once
// (Told.Go, Crew). Told.Do is for callbacks in goroutines that other modules began.
package rescue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/errgroup"
)

// Panic is a panic as an error.
type Panic struct { //nolint:errname // it is one that was caught
	Cause any
	Stack []byte // of the goroutine
}

// Error leaves the stack to Told.
func (p *Panic) Error() string { return fmt.Sprintf("panicked: %v", p.Cause) }

// Call runs work. Its panic is an error.
func Call(work func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = &Panic{Cause: cause, Stack: debug.Stack()}
		}
	}()
	return work()
}

// Async is Call in a goroutine. Its error can be received once.
func Async(work func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- Call(work) }()
	return done
}

// Within is Call for as long as ctx allows. Work that goes on then is left behind.
func Within(ctx context.Context, work func() error) error {
	select {
	case err := <-Async(work):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// After is context.AfterFunc for work of which nobody hears.
func After(ctx context.Context, work func() error) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = Call(work) })
}

// Group waits for goroutines; the first error, or panic, is that of Wait.
type Group struct{ errgroup.Group }

// Go begins one of them.
func (g *Group) Go(work func() error) { g.Group.Go(func() error { return Call(work) }) }

// Told is told of panics: it logs and counts. nil is told nothing.
type Told func(doing string, p *Panic)

// Go begins a goroutine. Work defers its own cleanup.
func (t Told) Go(doing string, work func()) { go t.Do(doing, work) }

// Do is Go in the goroutine of the caller.
func (t Told) Do(doing string, work func()) {
	_ = t.Tell(doing, Call(func() error { work(); return nil })) // it was told
}

// Tell tells of an error that is a panic, and returns the error.
func (t Told) Tell(doing string, err error) error {
	if p, ok := errors.AsType[*Panic](err); ok && t != nil {
		t(doing, p)
	}
	return err
}

// Crew waits for goroutines whose panics are told.
type Crew struct {
	Told Told
	wait sync.WaitGroup
}

// Go begins one of them.
func (c *Crew) Go(doing string, work func()) {
	c.wait.Go(func() { c.Told.Do(doing, work) })
}

// Wait returns when all have ended.
func (c *Crew) Wait() { c.wait.Wait() }

// WaitWithin is Wait for as long as ctx allows.
func (c *Crew) WaitWithin(ctx context.Context) error {
	return Within(ctx, func() error { c.Wait(); return nil })
}
