package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/internal/terminal"
	"github.com/fleetslots/dispatcher/operators"
)

// sealVerification is the result of `events verify`.
type sealVerification struct {
	Blocks   int                  `json:"blocks"` // number of blocks that were compared
	Events   int64                `json:"events"` // number of events that these blocks had when they were sealed
	Unsealed int                  `json:"unsealed"`
	First    *operators.EventSeal `json:"first_seal"` // seal of the first compared block; nil if no block was compared
	Last     *operators.EventSeal `json:"last_seal"`
	Faults   []sealFault          `json:"faults"`
}

// sealFault describes a block whose events do not match the seal of the block, or a seal that is missing.
type sealFault struct {
	operators.EventSeal

	Problem string `json:"problem"`
}

func verifyEventsCommand(operator *operatorFlags) *cobra.Command {
	file := ""
	command := &cobra.Command{
		Use: "verify", Short: "Find events that were changed, removed or inserted after they were sealed", Args: cobra.NoArgs,
		Long: `Compare the events with their seals, block by block. The output names each block whose
events or seal were changed, and the number of events that are not sealed yet.

Somebody who can write into the database can also make all seals anew. To find this, keep
the output of "events verify --output json" elsewhere, and give it to a later run with
--since-seal: the run begins with the last seal in this file, which the ledger must still
have.

Exit status 1 if something was changed, else 0.`,
		RunE: operator.withSession(func(s *session, _ []string) error {
			kept, err := readKeptSeal(file)
			if err != nil {
				return usageError{fmt.Errorf("--since-seal: %w", err)}
			}
			v, err := s.verifyEvents(kept)
			if err == nil {
				err = v.writeResult(s.console)
			}
			if n := int64(len(v.Faults)); err == nil && n > 0 {
				err = errors.New("the log of events was changed: " + countText(n, "fault", "faults"))
			}
			return err
		}),
	}
	command.Flags().StringVar(&file, "since-seal", "", "file with the output of an earlier verify --output json: begin with its last seal")
	return command
}

// readKeptSeal returns the last seal in file, which contains an earlier JSON output of `events verify`. If file is empty,
// it returns nil.
func readKeptSeal(file string) (*operators.EventSeal, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // no file, no seal
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var kept sealVerification
	if err := json.Unmarshal(text, &kept); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if kept.Last == nil || kept.Last.SealedAt == nil {
		return nil, fmt.Errorf("%s: has no last_seal", file)
	}
	return kept.Last, nil
}

// verifyEvents compares the events with their seals. It begins with keptSeal, a seal that the user stored earlier. If
// keptSeal is nil, it begins with the first seal.
func (s *session) verifyEvents(keptSeal *operators.EventSeal) (sealVerification, error) {
	v, after := sealVerification{Faults: []sealFault{}}, int64(-1)
	if keptSeal != nil {
		after = keptSeal.Last - 1
	}
	for seal, err := range s.Events.Seals(s.cmd.Context(), after) {
		switch {
		case err != nil:
			return v, err
		case seal.SealedAt == nil:
			v.Unsealed = seal.Found
		default:
			if v.Last == nil && keptSeal != nil && (seal.Last != keptSeal.Last || seal.Hash != keptSeal.Hash) {
				v.Faults = append(v.Faults, sealFault{*keptSeal, "the ledger does not have this seal any more"})
			}
			v.addSeal(seal)
		}
	}
	if v.Last == nil {
		return v, errors.New("the ledger does not have these seals any more")
	}
	return v, nil
}

// addSeal counts the block of events that seal protects, and records a fault if its events do not match the seal.
func (v *sealVerification) addSeal(seal operators.EventSeal) {
	v.Last = &seal
	if seal.Events > 0 {
		v.Blocks, v.Events, v.First = v.Blocks+1, v.Events+int64(seal.Events), cmp.Or(v.First, &seal)
	}
	if seal.Hash == seal.Computed {
		return
	}
	problem := "an event or the seal was changed"
	switch {
	case seal.Found > seal.Events:
		problem = "events were inserted, or the seal before was removed"
	case seal.Found < seal.Events:
		problem = fmt.Sprintf("%d of %d events are missing", seal.Events-seal.Found, seal.Events)
	}
	v.Faults = append(v.Faults, sealFault{seal, problem})
}

// writeResult writes the faults as a table, and a message with the numbers of compared events and blocks. With --output json,
// it writes v as JSON.
func (v *sealVerification) writeResult(output *console) error {
	if output.isJSON {
		return writeJSON(output.out, v, jsonIndent)
	}
	table := terminal.NewTable(output.out, "EVENTS", "SEALED", "PROBLEM")
	for _, f := range v.Faults {
		table.AddRow(fmt.Sprintf("%d to %d", f.After+1, f.Last), f.SealedAt.UTC().Format(terminal.TimeLayout), f.Problem)
	}
	if v.First != nil {
		output.writeMessage("The first block was sealed at %s.", v.First.SealedAt.UTC().Format(terminal.TimeLayout))
	}
	output.writeMessage("Compared %s in %s. Not sealed yet: %s.", countText(v.Events, "event", "events"), countText(int64(v.Blocks), "block", "blocks"), countText(int64(v.Unsealed), "event", "events"))
	return table.Flush()
}
