# Runs the commands of its arguments in the guest's shell.
eval "$*"
