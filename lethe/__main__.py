from lethe.cli import main

main()
