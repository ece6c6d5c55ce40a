package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// tokenFlag is a flag with the name of a file that contains a token. No flag takes the token itself, because other users of the machine can
// read the arguments of a program. If the flag is not given, the token is empty.
type tokenFlag string

// String returns the token.
func (t *tokenFlag) String() string { return string(*t) }

// Set reads the token from a file.
func (t *tokenFlag) Set(file string) error {
	content, err := os.ReadFile(file)
	*t = tokenFlag(strings.TrimSpace(string(content)))
	return err
}

// Type returns "string", the name of the value in the help of the flag.
func (t *tokenFlag) Type() string { return "string" }

// addDeviceTokenFlag adds the flag with which an operator chooses the token of a device, and returns the flag. The flag sets the field token.
func addDeviceTokenFlag(command *cobra.Command) *tokenFlag {
	const name = "device-token-file"
	token := new(tokenFlag)
	command.Flags().Var(token, name, "file that contains the token to set: 32 random hexadecimal digits, for firmware that can hold no more (default: a longer token is made)")
	_ = command.Flags().SetAnnotation(name, fieldAnnotation, []string{"token"}) // fails only for a flag that does not exist
	return token
}
